"use strict";
(() => {
  const talk = document.querySelector(".talk");
  if (!talk) return;
  const detail = talk.querySelector(".detail");
  let shown = null;

  const show = (token) => {
    if (!token || token === shown) return;
    if (shown) shown.classList.remove("on");
    shown = token;
    token.classList.add("on");
    const [position, id, logprob, probability, version] = token.dataset.t.split(",");
    const parts = [JSON.stringify(token.textContent), `id ${id}`, `position ${position}`];
    if (logprob) parts.push(`logprob ${logprob}`, `probability ${probability} %`);
    if (version) parts.push(`version ${version}`);
    detail.textContent = parts.join("  ·  ");
  };

  const open = () => {
    const named = document.getElementById(location.hash.slice(1));
    if (!(named instanceof HTMLDetailsElement)) return;
    named.open = true;
    named.scrollIntoView();
  };
  window.addEventListener("hashchange", open);
  document.addEventListener("click", (event) => { if (event.target.closest("a[href='" + location.hash + "']")) open(); });
  open();

  talk.addEventListener("change", (event) => { talk.dataset.colour = event.target.value; });
  talk.addEventListener("pointerover", (event) => show(event.target.closest("pre span")));
  talk.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const block = event.target.closest("pre");
    if (!step || !block) return;
    event.preventDefault();
    const next = shown && block.contains(shown) ? (step > 0 ? shown.nextElementSibling : shown.previousElementSibling) : block.firstElementChild;
    show(next);
    if (next) next.scrollIntoView({ block: "nearest" });
  });
})();
