// What the reader chose, kept in the address: a link shows a colleague the same view.
const PREFIX = "#view&";
const view = new URLSearchParams(location.hash.startsWith(PREFIX) ? location.hash.slice(PREFIX.length) : "");
const pins = new Map(view.getAll("pin").map((text) => { const [site, ...note] = text.split(" "); return [site, note.join(" ")]; }));

/** A choice as the address has it, or what it is without one. */
const chosenView = (key, otherwise) => view.get(key) ?? otherwise;

/** Writes a choice into the address; null takes it out. */
function keep(key, value) {
  if (value === null || value === undefined || value === "") view.delete(key);
  else view.set(key, String(value));
  writeView();
}

/** Pins a node with a note, or takes the pin away with null. */
function pin(site, note) {
  if (note === null) pins.delete(site);
  else pins.set(site, note);
  view.delete("pin");
  for (const [name, text] of pins) view.append("pin", text ? `${name} ${text}` : name);
  writeView();
}

function writeView() {
  const text = view.toString();
  history.replaceState(null, "", text ? PREFIX + text : location.pathname + location.search);
}

/** Sections are reached without a change of the address, which holds the view. */
function wireSections() {
  for (const link of document.querySelectorAll('nav a, a.skip')) {
    link.addEventListener("click", (event) => {
      const section = byId(link.getAttribute("href").slice(1));
      if (!section) return;
      event.preventDefault();
      section.scrollIntoView({block: "start"});
    });
  }
  addEventListener("hashchange", () => { if (location.hash.startsWith(PREFIX)) location.reload(); });
}
