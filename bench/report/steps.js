// One output, token by token, from the data in the page.
const byId = (id) => document.getElementById(id);
const held = byId("data"); // not there if the results have no outputs
const data = held && JSON.parse(held.textContent);

/** The steps of a decoding, each with its tokens in the order in which they are shown. */
function stepsOf(decoding) {
  let said = 0, rest = 0, drafted = 0;
  return decoding.emitted.map((emitted, number) => {
    const step = {
      number,
      count: decoding.emitted.length,
      drafted: decoding.drafted[number],
      accepted: decoding.accepted[number],
      phrase: decoding.phrase_accepted[number],
      stop: data.texts[decoding.stop_reason[number]],
      tokens: [],
    };
    const inOutput = Math.min(step.accepted, emitted);
    for (let i = 0; i < emitted; i++) {
      const token = { text: text(decoding.emitted_text, said + i), place: said + i, kind: kindOf(step, i, inOutput) };
      step.tokens.push(i < inOutput ? { ...token, ...draftNumbers(decoding, drafted + i), index: i } : token);
    }
    for (let i = inOutput; i < step.drafted; i++) {
      const kind = i < step.accepted ? "cut" : "rejected";
      const token = { text: text(decoding.rest_text, rest + i - inOutput), kind, index: i };
      step.tokens.push({ ...token, ...draftNumbers(decoding, drafted + i) });
    }
    said += emitted;
    rest += step.drafted - inOutput;
    drafted += step.drafted;
    return step;
  });
}

function kindOf(step, i, inOutput) {
  if (i < inOutput) return "accepted";
  if (i < inOutput + step.phrase) return "phrase";
  if (step.drafted === 0) return "target";
  return step.accepted < step.drafted ? "corrected" : "bonus";
}

const text = (places, i) => (places ? data.texts[places[i]] : "");

function draftNumbers(decoding, i) {
  const of = (name) => (decoding[name] && decoding[name][i] != null ? decoding[name][i] / data.scale : null);
  return { confidence: of("confidence"), entropy: of("entropy"), estimate: of("estimate") };
}
