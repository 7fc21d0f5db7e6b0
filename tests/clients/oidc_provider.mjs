// An issuer of access tokens: `node oidc_provider.mjs PORT AUDIENCE`. Prints "ready" when it listens.
// Each client of client_credentials gets a JWT for the audience; its tenant is what follows "of-" in its id.
import { generateKeyPairSync } from "node:crypto";
import { Provider } from "oidc-provider";

const [port, audience] = process.argv.slice(2);
const scope = "holdfast:read holdfast:write holdfast:admin";
const clients = ["of-acme", "of-umbrella", "of-nobody!"].map((id) => ({
  client_id: id,
  client_secret: `secret ${id}`,
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
  scope,
}));
const jwk = (type, options) => generateKeyPairSync(type, options).privateKey.export({ format: "jwk" });
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients,
  scopes: scope.split(" "),
  jwks: { keys: [{ ...jwk("rsa", { modulusLength: 2048 }), use: "sig" }, jwk("ec", { namedCurve: "P-256" })] },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      getResourceServerInfo: (ctx) => ({
        scope,
        audience: ctx.oidc.params.resource ?? audience,
        accessTokenTTL: Number(ctx.request.headers["x-seconds"] ?? 600),
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: ctx.request.headers["x-algorithm"] ?? "RS256" } },
      }),
    },
  },
  extraTokenClaims: (ctx, token) => ({ tenant: token.clientId.slice("of-".length) }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
