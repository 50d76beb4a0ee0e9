// The theme's script adds a <nav> to every block of code, which makes as many landmarks without a name, and
// wide tables that a keyboard cannot scroll; its search has no name, either. It adds them late, so this watches for them.
const adapt = () => {
  document.querySelectorAll("nav.md-code__nav").forEach((buttons, at) => {
    buttons.setAttribute("aria-label", `Code ${at + 1}`);
  });
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => table.setAttribute("tabindex", "0"));
};

new MutationObserver(adapt).observe(document.documentElement, { childList: true, subtree: true });
adapt();
