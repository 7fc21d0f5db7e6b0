// The live page: asks for its changing part every 2 s while it is seen, and draws the last 5 minutes.

const PERIOD_MS = 2000;
const SAMPLES = 150;
const WIDTH = 150;
const HEIGHT = 40;

const box = document.getElementById("refresh");
const live = document.getElementById("live");
const lines = { tokens: [], step: [] };
let last = null;

// Rates are those between two samples of the same process; a balancer may ask another one.
function takeSample() {
  const { replica, tokens, step } = document.getElementById("sample").dataset;
  const now = { replica, tokens: Number(tokens), at: performance.now() };
  if (last && last.replica === replica && now.tokens >= last.tokens) {
    push("tokens", ((now.tokens - last.tokens) * 1000) / (now.at - last.at));
    push("step", Number(step) * 1000);
    show();
  }
  last = now;
}

function push(name, value) {
  lines[name] = [...lines[name], value].slice(-SAMPLES);
}

function show() {
  document.getElementById("sparks").hidden = false;
  draw("tokens", (value) => value.toFixed(value < 10 ? 1 : 0));
  draw("step", (value) => `${value.toFixed(1)} ms`);
}

function draw(name, write) {
  const values = lines[name];
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, place) => {
    const x = WIDTH * (1 - (values.length - 1 - place) / (SAMPLES - 1));
    return `${x.toFixed(1)},${(HEIGHT - 1 - (HEIGHT - 4) * (value / most)).toFixed(1)}`;
  });
  document.querySelector(`#${name}-spark polyline`).setAttribute("points", points.join(" "));
  document.getElementById(`${name}-now`).textContent = `${write(values.at(-1))}, at most ${write(Math.max(...values))}`;
}

// An open confirmation, or a place in a table, would be lost with its element.
function isInUse() {
  return document.hidden || !box.checked || live.querySelector("details[open]") || live.contains(document.activeElement);
}

async function refresh() {
  if (!isInUse()) {
    try {
      await window.htmx.ajax("GET", live.dataset.address, { target: "#live", swap: "innerHTML" });
      takeSample();
    } catch {
      // The next time may succeed.
    }
  }
  setTimeout(refresh, PERIOD_MS);
}

takeSample();
setTimeout(refresh, PERIOD_MS);
