// The replay on a response's page: play and pause, speed, position; and following one that still runs.

import { EventList } from "./event_list.js";
import { EventLog } from "./event_log.js";
import { LiveStream } from "./live_stream.js";
import { ReplayText } from "./replay_text.js";

const AT_ONCE = 5000; // events of a frame at the speed ∞
const root = document.getElementById("replay");
const find = (name) => document.getElementById(`replay-${name}`);
const [playButton, speed, slider, number, state, curl] = ["play", "speed", "position", "number", "state", "curl"].map(find);

const log = new EventLog(root.dataset.address);
const text = new ReplayText(find("text"), log);
const list = new EventList(find("events"), find("payload"), log, (chosen) => choose(chosen), (missing) => load(missing));
const started = performance.now();
const age = () => Number(root.dataset.ageMs) + performance.now() - started;

let position = -1; // the number of the last event that is shown
let clock = 0; // milliseconds since the response was created
let playing = false;
let following = false; // each new event is shown at once
let lastFrame = 0;

function say(words) {
  state.textContent = words;
}

async function load(wanted) {
  try {
    await log.loadTo(wanted);
    slider.max = Math.max(-1, log.end - 1);
    list.render();
    return true;
  } catch (error) {
    say(error.message);
    pausePlay();
    return false;
  }
}

function show(to) {
  if ("contents" in root.dataset) text.show(to, playing || following);
  position = to;
  slider.max = Math.max(-1, log.end - 1);
  slider.value = to;
  number.textContent = to < 0 ? "–" : `${to} of ${log.end - 1}`;
  list.show(to);
}

function pausePlay() {
  playing = false;
  text.paint(false);
  playButton.textContent = "Play";
}

function atEnd() {
  return log.isWhole && position >= log.end - 1;
}

async function play() {
  if (!(await load(0))) return;
  if (atEnd()) seekShown(-1);
  clock = position < 0 ? log.events[0]?.ms ?? 0 : log.events[position].ms;
  playing = true;
  following = false;
  playButton.textContent = "Pause";
  say("");
  lastFrame = performance.now();
  requestAnimationFrame(frame);
}

function seekShown(to) {
  show(to);
  clock = log.events[to]?.ms ?? 0;
}

// The number of the event to show now, at most `AT_ONCE` further.
function due() {
  const last = Math.min(log.events.length - 1, position + AT_ONCE);
  if (Number(speed.value) === 0) return last;
  let to = position;
  while (to < last && log.events[to + 1].ms <= clock) to += 1;
  return to;
}

async function frame(now) {
  if (!playing) return;
  clock += (now - lastFrame) * Number(speed.value);
  lastFrame = now;
  const to = due();
  if (to > position) show(to);
  if (atEnd()) {
    pausePlay();
    say(text.verdict);
    remember();
    return;
  }
  if (position >= log.events.length - 1) {
    if (!log.ended && position >= log.end - 1) return follow();
    if (!(await load(position + 1))) return;
    lastFrame = performance.now();
  }
  requestAnimationFrame(frame);
}

function follow() {
  pausePlay();
  if (!("contents" in root.dataset)) return say("It still runs; play again for what has come since.");
  following = true;
  say("Live");
}

// The place is in the address, so that it can be shared and survives a reload.
function remember() {
  const address = new URL(location.href);
  address.searchParams.set("event", position);
  history.replaceState(null, "", address);
}

async function choose(to) {
  pausePlay();
  following = false;
  if (!(await load(to))) return;
  seekShown(Math.min(to, log.events.length - 1));
  list.showPayload(position);
  say(atEnd() ? text.verdict : "");
  remember();
}

async function copyCurl() {
  const api = `${location.origin}/v1/responses/${root.dataset.response}`;
  const after = position < 0 ? "" : `&starting_after=${position}`;
  curl.textContent = `curl -N "${api}?stream=true${after}" -H "Authorization: Bearer $OPENAI_API_KEY"`;
  curl.hidden = false;
  try {
    await navigator.clipboard.writeText(curl.textContent);
    say("Copied.");
  } catch {
    getSelection().selectAllChildren(curl); // there is no clipboard without HTTPS
  }
}

function toggle() {
  if (playing) {
    pausePlay();
    remember();
  } else {
    play();
  }
}

function onKey(event) {
  if (event.key !== " " || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=range]), textarea, select, button, summary, a, dialog")) return;
  event.preventDefault();
  toggle();
}

// The facts and items as they are after the end; the replay stays where it is.
async function onEnd() {
  say("Ended.");
  const whole = following;
  await log.reload().catch(() => {});
  log.ended = true;
  if (whole) {
    following = false;
    show(log.events.length - 1);
    say(text.verdict);
  }
  await reloadFacts();
}

async function reloadFacts() {
  document.getElementById("replay-title").textContent = "Replay";
  const address = root.dataset.address;
  await window.htmx.ajax("GET", `${location.pathname}${location.search}`, { target: "#response", select: "#response", swap: "outerHTML" });
  await window.htmx.ajax("GET", `${address}/timeline`, { target: "#timeline", swap: "outerHTML" });
}

async function begin() {
  if (!(await load(0))) return;
  const wanted = Number(new URLSearchParams(location.search).get("event") ?? -1);
  if (wanted >= 0 && Number.isInteger(wanted)) await choose(wanted);
  else show(-1);
  if ("ended" in root.dataset) return;
  if (log.ended) return reloadFacts(); // it ended since the page was made
  if (!("contents" in root.dataset)) return;
  if (!(await load(log.end - 1))) return;
  if (wanted < 0) {
    follow();
    show(log.events.length - 1);
  }
  new LiveStream(log, age, {
    onEvent: () => {
      if (following) {
        state.textContent = "Live";
        show(log.events.length - 1);
      } else {
        slider.max = log.end - 1;
        list.render();
      }
    },
    onEnd,
    onBreak: () => say("The connection was lost; it is tried again."),
    onFork: () => location.reload(),
  });
}

playButton.addEventListener("click", toggle);
slider.addEventListener("input", () => choose(Number(slider.value)));
find("copy").addEventListener("click", copyCurl);
document.addEventListener("keydown", onKey);
begin();
