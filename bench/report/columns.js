// A method's column: its numbers on one sample, its draft lengths, its output. All texts are untrusted: they reach the
// page as text nodes only.
function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function shape(name, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

function number(name, decoding) {
  return decoding.numbers[data.numbers.indexOf(name)];
}

const fixed = (value, digits, unit = "") => (value === null ? "–" : value.toFixed(digits) + unit);

function summary(decoding, metric) {
  const of = (name) => number(name, decoding);
  const [drafted, accepted] = [of("drafted"), of("accepted")];
  const share = drafted ? ` (${Math.round((100 * accepted) / drafted)} %)` : "";
  const rows = [
    ["speedup", fixed(of("speedup"), 2, "×")],
    ["tok/s", fixed(of("tokens_per_s"), 1)],
    ["tok/pass", fixed(of("tokens_per_target_forward"), 2)],
    ["steps", `${of("steps")}`],
    ["new tokens", `${of("new_tokens")}`],
    ["drafted", `${drafted}`],
    ["accepted", `${accepted}${share}`],
    [metric, of("score") === null ? "not scored" : fixed(of("score"), 2)],
  ];
  if (of("phrase_tokens")) rows.push(["from phrases", `${of("phrase_accepted")} of ${of("phrase_tokens")}`]);
  const list = make("dl", "numbers");
  for (const [name, value] of rows) {
    const row = make("div");
    row.append(make("dt", "", name), make("dd", "", value));
    list.append(row);
  }
  return list;
}

/** Draft lengths over the steps: a column per step, on one scale in all outputs that are shown. */
function chart(steps, tallest, longest) {
  const [wide, high] = [10, 4];
  const size = { width: Math.max(longest, 24) * wide, height: tallest * high + 2 };
  const lengths = steps.map((step) => `${step.accepted} of ${step.drafted}`).join(", ");
  const label = `Accepted of drafted tokens in each step: ${lengths}`;
  const viewBox = `0 0 ${size.width} ${size.height}`;
  const svg = shape("svg", { class: "chart", viewBox, ...size, role: "img", "aria-label": label });
  steps.forEach((step, i) => {
    const parts = [["own", step.accepted], ["extra", step.phrase], ["vain", step.drafted - step.accepted]];
    let y = size.height - 1;
    for (const [name, count] of parts) {
      y -= count * high;
      if (count) shape("rect", { class: name, x: i * wide + 1, y, width: wide - 3, height: count * high - 0.8 }, svg);
    }
  });
  const ground = size.height - 0.5;
  shape("line", { class: "base", x1: 0, x2: steps.length * wide, y1: ground, y2: ground }, svg);
  return svg;
}

function tokenElement(token, step) {
  const inOutput = token.place !== undefined;
  const element = make("span", `token ${token.kind}`, inOutput ? token.text : token.text.replaceAll("\n", "↵"));
  if (inOutput && token.text.startsWith("\n")) element.classList.add("newline");
  if (isWord(token)) element.classList.add("word");
  if (token.text === "") element.classList.add("part");
  element.tabIndex = -1;
  element.shows = { token, step };
  if (inOutput) element.dataset.place = token.place;
  return element;
}

/** A word with its space, which a line may break before but not within: a frame around it stays in one piece. */
const isWord = (token) => /^ \S{1,20}$/.test(token.text);

const tokenElements = (step) =>
  step.tokens.flatMap((token) => [...(isWord(token) ? [make("wbr")] : []), tokenElement(token, step)]);

function output(decoding, label, steps) {
  if (!decoding.emitted_text) return make("p", "output plain", decoding.output);
  const box = make("div", "output");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `Output of ${label}, by steps; arrow keys move between tokens`);
  for (const step of steps) {
    const part = make("span", "step");
    part.append(...tokenElements(step));
    box.append(part);
  }
  const first = box.querySelector(".token");
  if (first) first.tabIndex = 0;
  return box;
}

/** What the label stands for: the method, if it has another name, and its settings. */
function about(method) {
  const name = method.label === method.method ? "" : `${method.method}, `;
  if (!method.settings.length) return make("p", "about", `${name}no settings`);
  const box = make("details", "about");
  const count = method.settings.length;
  box.append(make("summary", "", `${name}${count} ${count === 1 ? "setting" : "settings"}`));
  box.append(...method.settings.map((setting) => make("span", "", setting)));
  return box;
}

/** The parts are rows of one grid, so that they stand beside each other in all columns. */
function column(method, decoding, metric, steps, tallest, longest) {
  const box = make("article", "column");
  box.append(make("h3", "", method.label), about(method));
  if (!decoding) {
    box.append(make("p", "small", "This sample was not decoded with it."));
    return box;
  }
  const drafting = steps.some((step) => step.drafted);
  box.append(summary(decoding, metric), drafting ? chart(steps, tallest, longest) : make("div"));
  box.append(output(decoding, method.label, steps), make("p", "small", `Ended by: ${decoding.finish}`));
  return box;
}
