resource "sandboxer_profile" "job" {
  name    = "job"
  network = { egress = "none" }
  ttl     = { default = "15m", max = "2h" }
}

# A sandbox with a deadline. When it has passed, the next plan replaces the
# sandbox, and what depends on it follows.
resource "sandboxer_sandbox" "ci" {
  profile = sandboxer_profile.job.document
  ttl     = "30m"
  env     = { STAGE = "e2e" }
  labels  = { suite = "checkout" }
}
