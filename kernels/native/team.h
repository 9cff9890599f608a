/* How the threads of a team share units of work. Each begins with a run of units of its own, the same part of the whole each
 * time: what it left for itself is then in its own cache, and another core's may be far away. One that has done its own
 * helps others with theirs. */
#pragma once

#include <stdint.h>

#include "vectors.h"

int omp_get_max_threads(void); /* a compiler may have OpenMP without its header */
int omp_get_num_threads(void);
int omp_get_thread_num(void);

/* How many of a thread's own units have been taken, in a line of its own. */
typedef struct {
    int64_t taken;
    char rest[LINE - sizeof(int64_t)];
} Share;

/* A thread's view of its team. Of the two sets of shares one is in use and the other is zeros. */
typedef struct {
    Share *shares; /* [2][num_threads] */
    int64_t num_threads, thread;
    int turn;
} Team;

/* Units that are being taken by a thread. */
typedef struct {
    Share *shares;
    int64_t num_units, num_threads, thread, num_done; /* threads whose units are all taken, from this one on */
} Units;

/* Room for the shares of any team that may come: two sets, as zeros. To be made before the team is. */
#define ROOM_FOR_SHARES(name)                      \
    Share name[2 * (size_t)omp_get_max_threads()]; \
    memset(name, 0, sizeof name)

INLINE Team join_team(Share *shares) {
    return (Team){shares, omp_get_num_threads(), omp_get_thread_num(), 0};
}

/* Begin to share units, as many for each thread of the team. */
INLINE Units share_units(const Team *team, int64_t num_units) {
    return (Units){team->shares + team->turn * team->num_threads, num_units, team->num_threads, team->thread, 0};
}

/* The first unit of a thread of the team's own. */
INLINE int64_t first_unit(const Units *units, int64_t thread) {
    return units->num_units * thread / units->num_threads;
}

/* Returns the next unit for this thread, or num_units where all are taken. */
INLINE int64_t take_unit(Units *units) {
    for (; units->num_done < units->num_threads; units->num_done++) {
        const int64_t owner = (units->thread + units->num_done) % units->num_threads;
        const int64_t taken = __atomic_fetch_add(&units->shares[owner].taken, 1, __ATOMIC_RELAXED);
        if (first_unit(units, owner) + taken < first_unit(units, owner + 1))
            return first_unit(units, owner) + taken;
    }
    return units->num_units;
}

/* Returns the unit that this thread would be given now, if it is one of its own; otherwise num_units. */
INLINE int64_t likely_unit(const Units *units) {
    const int64_t taken = __atomic_load_n(&units->shares[units->thread].taken, __ATOMIC_RELAXED);
    const int64_t unit = first_unit(units, units->thread) + taken;
    return unit < first_unit(units, units->thread + 1) ? unit : units->num_units;
}

/* Wait until the units of the whole team are done, and be ready to share others. */
INLINE void meet_team(Team *team) {
    team->turn ^= 1;
    team->shares[team->turn * team->num_threads + team->thread].taken = 0; /* all have left that set: they met since */
#pragma omp barrier
}
