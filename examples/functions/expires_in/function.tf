resource "sandboxer_sandbox" "ci" {
  profile = "shell"
  ttl     = "30m"
}

output "seconds_left" {
  value = provider::sandboxer::expires_in(sandboxer_sandbox.ci.expires_at, sandboxer_sandbox.ci.created_at)
}
