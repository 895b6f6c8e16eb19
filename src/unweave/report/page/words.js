// The example prompt with its words coloured by what they add to the answer.

function wordsPanel(host, run, found = run.words) {
  const {words, target, metric, predicted} = asMap(found);
  const listed = asList(words);
  if (!listed.length) {
    return empty(host, "No words were scored in this run; any text can be:", `${run.commands.attribute} "…"`);
  }
  const most = Math.max(...listed.map((w) => Math.abs(w.score)).filter(isNumber), 0) || 1;
  const line = el("div", {class: "tokens", dir: "auto"}, listed.map((word) => {
    const chip = el("span", {class: "chip word " + sign(word.score), title: signed(word.score, 4)},
      el("bdi", {class: "tok"}, show(word.text, 40)), el("small", {}, signed(word.score, 2)));
    chip.style.setProperty("--m", isNumber(word.score) ? 70 * Math.abs(word.score) / most : 0);
    return chip;
  }));
  host.replaceChildren(
    el("p", {}, el("bdi", {class: "tok"}, show(target, 80)), " = ", el("b", {}, signed(metric)), ", predicted: ", el("bdi", {class: "tok"}, show(predicted, 40))),
    line,
    dataTable("These scores as a table", ["word", "score"], listed.map((w) => [show(w.text, 40), signed(w.score, 4)])));
}
