// Looks at pages in a real browser: `node browse.mjs JSON`; prints what it has seen as JSON.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const asked = JSON.parse(process.argv[2]);
const require = createRequire(asked.modules + "/x.js");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const seen = { errors: [], violations: [], requests: [], steps: {} };
const browser = await chromium.launchPersistentContext(asked.profile, {
  executablePath: asked.chromium, headless: true, bypassCSP: false, baseURL: asked.base,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage();
page.on("console", (message) => { if (message.type() === "error") seen.errors.push(message.text()); });
page.on("pageerror", (error) => seen.errors.push(String(error)));
page.on("dialog", (dialog) => { seen.errors.push("a script opened: " + dialog.message()); dialog.dismiss(); });
page.on("request", (request) => { if (!request.url().startsWith(asked.base)) seen.requests.push(request.url()); });
// An accessibility checker is no part of the page: it is evaluated from outside, which the policy does not see.
async function check(name) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  for (const each of found.violations) {
    const nodes = each.nodes.map((node) => node.html.slice(0, 160));
    seen.violations.push({ page: name, impact: each.impact, id: each.id, nodes });
  }
}
async function picture(name) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) seen.errors.push(`${name} at ${width} px is ${wide} px too wide`);
      if (asked.pictures) await page.screenshot({ path: `${asked.pictures}/${name}-${width}-${scheme}.png`, fullPage: true });
      await check(`${name} ${width} ${scheme}`);
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}
await page.goto("/usage");
seen.steps.signIn = new URL(page.url()).pathname;
await picture("sign-in");
await page.keyboard.type(asked.key);
await page.keyboard.press("Enter");
await page.waitForURL("**/usage");
await picture("usage");
await page.click("nav >> text=Runs");
await page.keyboard.press("Tab");
seen.steps.skip = await page.evaluate(() => document.activeElement.textContent);
await page.evaluate(() => document.activeElement.blur());
await picture("runs");
seen.steps.hostile = await page.locator("a.text", { hasText: "<script>alert(1)</script>" }).count();
await page.fill("input[name=text]", "painter of the night");
await page.selectOption("select[name=outcome]", "answered");
await page.keyboard.press("Enter");
await page.click("button >> text=Filter");
await page.waitForURL("**text=painter**");
seen.steps.filtered = await page.locator("#runs tbody tr").count();
seen.steps.address = page.url();
console.log(JSON.stringify({ ready: true }));
await page.waitForFunction(() => document.querySelector("#runs").textContent.includes("the newest of all"), null, { timeout: 20000 });
seen.steps.newest = await page.textContent("#newest");
await page.click("nav >> text=Versions");
await picture("versions");
await page.click("summary >> text=Promote");
await page.click("button >> text=Promote");
await page.waitForLoadState();
seen.steps.promoted = await page.locator("tr", { hasText: "executor-000002" }).first().locator(".state").textContent();
await page.click("text=Sign out");
seen.steps.signedOut = new URL(page.url()).pathname;
await page.goto("/runs");
seen.steps.after = new URL(page.url()).pathname;
await browser.close();
console.log(JSON.stringify(seen));
