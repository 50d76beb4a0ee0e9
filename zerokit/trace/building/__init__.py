"""Models built on the meta device as training builds them: quantised, adapted, sharded."""
