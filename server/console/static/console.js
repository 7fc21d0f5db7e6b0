// What all pages share: keys, rows that open as links, dialogs, the live tail.

const PAGES = { h: "history", l: "live", u: "usage", t: "tenants", s: "sql", p: "playground" };
const TAIL_MS = 2000;

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

function rows() {
  return [...document.querySelectorAll("tr[data-href]")];
}

function moveRow(step) {
  const all = rows();
  if (all.length === 0) return;
  const now = all.findIndex((row) => row.classList.contains("chosen"));
  const next = Math.min(Math.max(now + step, 0), all.length - 1);
  all.forEach((row, index) => row.classList.toggle("chosen", index === next));
  all[next].scrollIntoView({ block: "nearest" });
}

function openRow() {
  const row = document.querySelector("tr.chosen[data-href]");
  if (row) location.href = row.dataset.href;
}

let goingTo = false;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (goingTo && PAGES[event.key]) location.href = `/console/${PAGES[event.key]}`;
  goingTo = event.key === "g";
  if (event.key === "/") {
    const box = document.querySelector("main input[type=search], [data-key='/']");
    box?.focus();
    box?.select();
    event.preventDefault();
  } else if (event.key === "?") {
    document.getElementById("help")?.showModal();
  } else if (event.key === "j" || event.key === "k") {
    moveRow(event.key === "j" ? 1 : -1);
  } else if (event.key === "Enter" && event.target === document.body) {
    openRow();
  }
}

function onClick(event) {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  if (event.target.closest("a, button, input, select, summary, label")) return;
  const row = event.target.closest("tr[data-href]");
  if (row && !getSelection().toString()) location.href = row.dataset.href;
}

// While its box is checked the rows are asked for again, as htmx asks for a fragment.
function startTail(box) {
  let timer = null;
  const ask = async () => {
    if (!document.hidden) await window.htmx.ajax("GET", box.dataset.tail, { target: "#rows", swap: "innerHTML" });
    if (box.checked) timer = setTimeout(ask, TAIL_MS);
  };
  box.addEventListener("change", () => {
    clearTimeout(timer);
    if (box.checked) ask();
  });
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.querySelectorAll("[data-tail]").forEach(startTail);
