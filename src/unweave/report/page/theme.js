// Light or dark, by the reader's system or by the button of the page.

/** The button, and what makes plotly's colours old: it takes them as they are, not from the style sheet. */
function wireTheme() {
  const root = document.documentElement, button = byId("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const tell = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use the ${dark() ? "light" : "dark"} theme`); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; tell(); repaint(); });
  tell();
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => { tell(); repaint(); });
  }
  // Firefox tells of printing by this event alone, while the colours are still those of the screen.
  addEventListener("beforeprint", () => {
    const before = root.dataset.theme || "";
    root.dataset.theme = "light";
    runLibrary();
    repaint(PAPER);
    addEventListener("afterprint", () => { root.dataset.theme = before; repaint(); }, {once: true});
  });
}
