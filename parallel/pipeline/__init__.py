"""Training one model in stages, each on its own device, microbatch after microbatch."""
