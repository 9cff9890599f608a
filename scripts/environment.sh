# Shared by the bash scripts; sourced, never run. Call `enter_repository` first.
# shellcheck shell=bash

say() {
    if [ -t 2 ]; then printf '\033[1m==> %s\033[0m\n' "$*" >&2; else printf '==> %s\n' "$*" >&2; fi
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Go to the repository's root and name the paths that the scripts share.
enter_repository() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    venv="${PAGEMILL_VENV:-$PWD/.venv}"
    python="$venv/bin/python"
}

# Print the first Python that is new enough; $PYTHON overrides the search.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3"
}

# Bring the browser that the tests of HTML reports drive, where it is missing and this user may install it.
ensure_browser() {
    if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then return; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "browser: no chromium and chromedriver here; the tests that need them are skipped"
        return
    fi
    say "browser: installing chromium"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        chromium chromium-driver; } >/dev/null || say "browser: apt-get could not install chromium"
}

# Install this repository with the given extras (for example "engine,dev") at the exact versions of constraints.txt.
# A stamp in the environment remembers what was installed, so that an unchanged one needs no network.
ensure_environment() {
    local extras="$1" stamp
    stamp="$(cat pyproject.toml scripts/constraints.txt | "$(find_python)" -c \
        'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())') $PWD"
    if [ -x "$python" ] && [ "$(cat "$venv/.stamp-$extras" 2>/dev/null)" = "$stamp" ]; then
        say "environment: $venv is up to date ($extras)"
        return
    fi
    if [ ! -x "$python" ]; then
        say "environment: making $venv with $(find_python)"
        "$(find_python)" -m venv "$venv"
    fi
    say "environment: installing pagemill[$extras] into $venv"
    rm -f "$venv"/.stamp-*
    "$python" -m pip install --quiet --constraint scripts/constraints.txt setuptools
    "$python" -m pip install --quiet --constraint scripts/constraints.txt --no-build-isolation --editable ".[$extras]"
    printf '%s\n' "$stamp" >"$venv/.stamp-$extras"
    # The developer's environment holds all that the runtime's does.
    [ "$extras" != "engine,dev" ] || printf '%s\n' "$stamp" >"$venv/.stamp-engine"
}
