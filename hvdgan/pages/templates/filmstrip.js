"use strict";
for (const film of document.querySelectorAll(".film")) {
  const frames = [...film.querySelectorAll(".frame")];
  const slider = film.querySelector("input");
  const [back, on] = film.querySelectorAll("button");
  const show = (index) => {
    slider.value = Math.max(0, Math.min(frames.length - 1, index));
    frames.forEach((frame, number) => { frame.hidden = number !== Number(slider.value); });
    slider.setAttribute("aria-valuetext", frames[slider.value].querySelector("figcaption").textContent);
    // A button with "disabled" would lose the focus, and with it the arrow keys.
    back.setAttribute("aria-disabled", Number(slider.value) === 0);
    on.setAttribute("aria-disabled", Number(slider.value) === frames.length - 1);
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  back.addEventListener("click", () => show(Number(slider.value) - 1));
  on.addEventListener("click", () => show(Number(slider.value) + 1));
  film.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move && event.target !== slider) {
      event.preventDefault();
      show(Number(slider.value) + move);
    }
  });
  film.querySelector(".controls").hidden = false;
  show(frames.length - 1);
}
