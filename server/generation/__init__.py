"""Pure: tokens → deltas → stream events → the Response object. Knows neither the store nor HTTP."""
