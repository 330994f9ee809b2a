// What a token says of itself when it is pointed at, tapped or reached with the keyboard.
const STOPS = {
  policy: "the policy ended it",
  gamma_max: "longest draft reached (gamma_max)",
  length: "longest output reached",
  "": "nothing was drafted",
};
const WHY = {
  accepted: "Draft token, accepted",
  phrase: "Token of a phrase after the draft, accepted",
  corrected: "The target’s own token, after a rejection",
  bonus: "The target’s own token, after all drafted tokens were accepted",
  target: "The target’s own token; nothing was drafted",
  cut: "Draft token, accepted, but behind the end of the output",
};
let lit = []; // elements that are marked at the moment
let shownFor = null; // the token that the tooltip is about

function tipRows(token, step) {
  const rows = [];
  if (token.index !== undefined) {
    rows.push(["place in draft", `${token.index + 1} of ${step.drafted}`]);
    rows.push(["confidence", fixed(token.confidence, 3)]);
    rows.push(["entropy", fixed(token.entropy, 3, " nats")]);
    rows.push(["estimate", token.estimate === null ? "the policy gave none" : fixed(token.estimate, 3)]);
  }
  rows.push(["step", `${step.number + 1} of ${step.count}`]);
  if (step.drafted) rows.push(["accepted", `${step.accepted} of ${step.drafted} drafted`]);
  if (step.phrase) rows.push(["phrase", `${step.phrase} accepted`]);
  rows.push(["drafting ended", Object.hasOwn(STOPS, step.stop) ? STOPS[step.stop] : step.stop]);
  return rows;
}

function why(token, step) {
  if (token.kind !== "rejected") return WHY[token.kind];
  if (token.index === step.accepted) return "Draft token, rejected by the target";
  return "Draft token, dropped: it follows a rejected one";
}

function fillTip(tip, { token, step }) {
  const list = make("dl");
  for (const [name, value] of tipRows(token, step)) list.append(make("dt", "", name), make("dd", "", value));
  const said = token.text === "" ? "(part of a character)" : token.text.replaceAll("\n", "↵").replaceAll(" ", "␣");
  tip.replaceChildren(make("p", "said", said), make("p", "why", why(token, step)), list);
}

function placeTip(tip, element) {
  const box = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - 8 - tip.offsetHeight)}px`;
}

function showTip(element) {
  hideTip();
  const tip = byId("tip");
  fillTip(tip, element.shows);
  tip.hidden = false;
  shownFor = element;
  placeTip(tip, element);
  element.setAttribute("aria-describedby", "tip");
  mark(element, "here");
  mark(element.parentElement, "lit");
  if (element.dataset.place === undefined) return;
  for (const twin of byId("columns").querySelectorAll(`[data-place="${element.dataset.place}"]`)) {
    if (twin !== element) mark(twin, "twin");
  }
}

function mark(element, name) {
  element.classList.add(name);
  lit.push([element, name]);
}

function hideTip() {
  byId("tip").hidden = true;
  shownFor = null;
  for (const [element, name] of lit) {
    element.classList.remove(name);
    element.removeAttribute("aria-describedby");
  }
  lit = [];
}

function moveFocus(event) {
  const token = event.target.closest(".output .token");
  if (event.key === "Escape") hideTip();
  if (!token) return;
  const all = [...token.closest(".output").querySelectorAll(".token")].filter((other) => other.offsetParent !== null);
  const here = all.indexOf(token);
  const [after, before] = [here + 1, here - 1];
  const goals = { ArrowRight: after, ArrowDown: after, ArrowLeft: before, ArrowUp: before, Home: 0, End: all.length - 1 };
  const next = all[goals[event.key]];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function focused(token) {
  for (const other of token.closest(".output").querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  token.tabIndex = 0;
  showTip(token);
}

function listenToTokens(columns) {
  const at = (event) => event.target.closest?.(".output .token");
  columns.addEventListener("mouseover", (event) => (at(event) ? showTip(at(event)) : hideTip()));
  columns.addEventListener("mouseleave", hideTip);
  columns.addEventListener("focusin", (event) => at(event) && focused(at(event)));
  columns.addEventListener("focusout", hideTip);
  columns.addEventListener("keydown", moveFocus);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  document.addEventListener("scroll", () => shownFor && placeTip(byId("tip"), shownFor), { passive: true });
  document.addEventListener("pointerdown", (event) => !at(event) && hideTip());
}
