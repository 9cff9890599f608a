"use strict";

// Reading values off a chart, by pointer or arrow keys. What is shown comes from the table of numbers under it.
for (const frame of document.querySelectorAll(".frame")) {
  const plot = frame.querySelector(".plot");
  const cursor = frame.querySelector(".cursor");
  const tip = frame.querySelector(".tip");
  const table = frame.parentElement.querySelector(".numbers table");
  const names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows];
  let at = rows.length - 1;

  const show = (index) => {
    at = Math.min(Math.max(index, 0), rows.length - 1);
    const share = (at + 0.5) / rows.length;
    cursor.setAttribute("x1", `${share * 100}%`);
    cursor.setAttribute("x2", `${share * 100}%`);
    const [moment, ...values] = [...rows[at].cells].map((cell) => cell.textContent);
    tip.textContent = [moment, ...names.map((name, number) => `${name}: ${values[number]}`)].join("\n");
    tip.hidden = false;
    const middle = plot.getBoundingClientRect().left - frame.getBoundingClientRect().left + share * plot.clientWidth;
    const room = frame.clientWidth - tip.offsetWidth;
    const beside = middle + 14 + tip.offsetWidth > frame.clientWidth ? middle - 14 - tip.offsetWidth : middle + 14;
    tip.style.left = `${Math.min(Math.max(beside, 0), Math.max(room, 0))}px`;
    frame.classList.add("reading");
  };
  const hide = () => {
    tip.hidden = true;
    frame.classList.remove("reading");
  };
  const keys = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, Home: () => 0, End: () => rows.length - 1 };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    show(Math.floor(((event.clientX - box.left) / box.width) * rows.length));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("focus", () => show(at));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (!(event.key in keys)) return;
    event.preventDefault();
    show(keys[event.key]());
  });
}

// A legend's buttons hide and show their lines.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isShown));
    const chart = button.closest(".chart");
    chart.querySelector(`.series[data-series="${button.dataset.series}"]`).classList.toggle("hidden", !isShown);
  });
}

// A heading sorts its table: numbers by what they stand for, the largest first, text by the alphabet.
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const descending = before === null ? isNumber : before === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => (isNumber ? Number(row.cells[column].dataset.sort ?? -Infinity) : row.cells[column].textContent);
      const order = (a, b) => (isNumber ? key(a) - key(b) || 0 : key(a).localeCompare(key(b)));
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => (descending ? order(b, a) : order(a, b))));
    });
  });
}

// Light or dark: the system's choice until the button is pressed.
const theme = document.getElementById("theme");
const root = document.documentElement;
const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const nameTheme = () => {
  theme.textContent = isDark() ? "Light" : "Dark";
};
theme.hidden = false;
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();
