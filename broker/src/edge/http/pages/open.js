// Exchanges the code in the fragment for a cookie and a token, and goes on to the pages.

const place = document.getElementById("open");
const said = document.getElementById("said");
const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

async function exchange() {
  if (!code) throw new Error("this link has no code; `reeve open` prints one");
  const answer = await fetch(place.dataset.session, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ code }),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(`${told.error.message}; ${told.error.suggestion ?? ""}`);
  localStorage.setItem("reeve-token", told.token);
  location.replace(place.dataset.next);
}

exchange().catch((error) => {
  said.textContent = error.message;
});
