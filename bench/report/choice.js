// Which pair, task, sample and methods are shown.
const FIRST = ["sd", "pacer", "pacer-ouroboros"];
const WIDE = 3; // columns that fit beside each other on a desk
const [pairs, tasks, samples] = ["pair", "task", "sample"].map(byId);
let chosen = null; // labels of the methods shown

const options = (select, names) => select.replaceChildren(...names.map((name, i) => new Option(name, String(i))));
const distinct = (names) => [...new Set(names)];
const pairNames = () => distinct(data.groups.map((group) => group.pair));
const groupsOf = (pair) => data.groups.filter((group) => group.pair === pair);
const ofPair = () => groupsOf(pairNames()[Number(pairs.value)]);
const group = () => ofPair()[Number(tasks.value)];

function sampleName(sample, repeats) {
  const repeat = repeats ? `, repeat ${sample.repeat}` : "";
  return sample.id + (sample.category ? ` (${sample.category})` : "") + repeat;
}

function fillMethods() {
  const labels = group().methods.map((method) => method.label);
  if (!chosen || !labels.some((label) => chosen.has(label))) {
    const likely = [...FIRST, ...labels.filter((label) => label !== "ar"), "ar"];
    chosen = new Set(distinct(likely).filter((label) => labels.includes(label)).slice(0, WIDE));
  }
  byId("methods").replaceChildren(
    ...labels.map((label) => {
      const line = make("label");
      const box = Object.assign(make("input"), { type: "checkbox", checked: chosen.has(label) });
      box.addEventListener("change", () => {
        chosen[box.checked ? "add" : "delete"](label);
        show();
      });
      line.append(box, ` ${label}`);
      return line;
    }),
  );
}

function fillSamples() {
  const repeats = group().samples.some((sample) => sample.repeat > 0);
  options(samples, group().samples.map((sample) => sampleName(sample, repeats)));
}

function fillTasks() {
  options(tasks, ofPair().map((one) => one.task));
  fillTask();
}

function show() {
  hideTip();
  const { methods, samples: all, metric } = group();
  const place = Number(samples.value);
  const decodings = methods.map((method, i) => [method, all[place].decodings[i]]);
  const columns = decodings.filter(([method]) => chosen.has(method.label));
  const steps = columns.map(([, decoding]) => (decoding ? stepsOf(decoding) : []));
  const drafting = steps.filter((own) => own.some((step) => step.drafted));
  const tallest = Math.max(1, ...drafting.flat().map((step) => step.drafted + step.phrase));
  const longest = Math.max(1, ...drafting.map((own) => own.length));
  const shown = columns.map(([method, decoding], i) => column(method, decoding, metric, steps[i], tallest, longest));
  byId("columns").replaceChildren(...(shown.length ? shown : [make("p", "small", "Choose a method above.")]));
  byId("previous").disabled = place === 0;
  byId("next").disabled = place === all.length - 1;
}

function turn(by) {
  samples.selectedIndex = Math.min(Math.max(samples.selectedIndex + by, 0), samples.length - 1);
  show();
}

function fillTask() {
  fillSamples();
  fillMethods();
  show();
}

function start() {
  options(pairs, pairNames());
  pairs.closest("label").hidden = pairNames().length < 2;
  pairs.addEventListener("change", fillTasks);
  tasks.addEventListener("change", fillTask);
  samples.addEventListener("change", show);
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  const columns = byId("columns");
  const toggle = (event) => columns.classList.toggle("hide-rejected", !event.target.checked);
  byId("rejected").addEventListener("change", toggle);
  listenToTokens(columns);
  fillTasks();
  byId("browser").hidden = false;
}

if (data) start();
