"""Work on stored responses beside serving: retention, and the invariants that `holdfast audit` checks."""
