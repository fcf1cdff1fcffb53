"use strict";
// Keeps a page up to date: the server says that something has changed, the page is fetched again, and the parts of it that
// differ are replaced. All works without it, by loading pages.
(() => {
  const main = document.getElementById("main"), button = document.getElementById("live");
  const atMost = 1000, fallback = 5000; // milliseconds between two fetches; and with a stream that does not come through
  let paused = false, stream = null, timer = 0, asked = 0, fetching = false, alone = 0;

  // Ticks of a list are all made with one.
  document.addEventListener("change", (e) => {
    if (!e.target.matches("[data-all]")) return;
    for (const box of e.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = e.target.checked;
  });
  const reveal = () => main.querySelectorAll("[data-all]").forEach((box) => { box.hidden = false; });
  reveal();
  // A result is said once, not again by an address that is kept.
  const here = new URL(location.href);
  if (here.searchParams.has("done")) {
    here.searchParams.delete("done");
    history.replaceState(null, "", here);
  }
  // An action is sent once.
  document.addEventListener("submit", (e) => {
    if (e.target.method === "post") setTimeout(() => e.target.querySelectorAll("button").forEach((b) => { b.disabled = true; }));
  });
  window.addEventListener("pageshow", () => document.querySelectorAll("form[method=post] button").forEach((b) => { b.disabled = false; }));

  if (!main.dataset.follow) return;
  button.hidden = false;

  // A page that is in use stays as it is.
  const inUse = () => {
    const selection = getSelection();
    return (selection && !selection.isCollapsed) || document.querySelector("dialog[open]") || main.querySelector("tbody :checked") ||
      main.matches(":active") || // a click whose press and release met two elements would be none
      document.activeElement.matches("main input, main select, main textarea");
  };

  const say = (text, off) => {
    if (button.textContent !== text) button.textContent = text;
    button.classList.toggle("off", !!off);
  };

  const swap = (fresh) => {
    const focused = document.activeElement;
    const part = focused.closest("[data-part]");
    const mark = part && { id: part.id, href: focused.getAttribute("href"), label: focused.getAttribute("aria-label") };
    for (const old of main.querySelectorAll("[data-part]")) {
      const next = fresh.getElementById(old.id);
      if (next && next.innerHTML !== old.innerHTML) {
        const across = [...old.querySelectorAll(".wide")].map((w) => w.scrollLeft);
        old.replaceChildren(...next.childNodes);
        old.querySelectorAll(".wide").forEach((w, i) => { w.scrollLeft = across[i] || 0; });
      }
    }
    const asof = fresh.getElementById("asof");
    if (asof) document.getElementById("asof").replaceChildren(...asof.childNodes);
    reveal();
    if (mark && !document.contains(focused)) {
      const again = [...document.getElementById(mark.id).querySelectorAll("a, [tabindex]")]
        .find((e) => e.getAttribute("href") === mark.href && e.getAttribute("aria-label") === mark.label);
      if (again) again.focus({ preventScroll: true });
    }
  };

  const look = async () => {
    timer = 0;
    if (paused || document.hidden || fetching) return;
    if (inUse()) return want();
    fetching = true;
    asked = Date.now();
    try {
      const answer = await fetch(location.href, { cache: "no-store", redirect: "error" });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!paused && !inUse()) swap(fresh);
      else want();
      if (!paused) say("Live");
    } catch {
      say("Out of reach", true);
    } finally {
      fetching = false;
    }
  };

  const want = () => { if (!timer) timer = setTimeout(look, Math.max(50, atMost - (Date.now() - asked))); };

  const listen = () => {
    const on = !paused && !document.hidden;
    clearInterval(alone);
    if (stream) stream.close();
    stream = null;
    if (!on) return;
    stream = new EventSource(main.dataset.follow);
    stream.addEventListener("changed", want);
    let opened = false;
    stream.onopen = () => { if (opened) want(); opened = true; };
    // Where no stream comes through, the page asks by itself.
    alone = setInterval(() => { if (!stream || stream.readyState !== EventSource.OPEN) want(); }, fallback);
  };

  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    say(paused ? "Stopped" : "Live");
    listen();
    if (!paused) want();
  });
  document.addEventListener("visibilitychange", () => { listen(); if (!document.hidden && !paused) want(); });
  window.addEventListener("pagehide", () => { if (stream) stream.close(); });
  window.addEventListener("pageshow", (e) => { if (e.persisted) listen(); });
  listen();
})();
