# A module of yours that makes a sandbox, and its test: `terraform test` with a
# mocked provider makes nothing and needs no backend. Terraform 1.7 or later.

terraform {
  required_version = ">= 1.7"
  required_providers {
    sandboxer = { source = "sand-boxer/sandboxer" }
  }
}

variable "ttl" {
  type        = string
  default     = "30m"
  description = "How long the sandbox lives."
}

resource "sandboxer_profile" "e2e" {
  name    = "e2e"
  command = ["sleep", "3600"]
  ttl     = { default = "30m", max = "2h" }
}

resource "sandboxer_sandbox" "ci" {
  profile      = sandboxer_profile.e2e.document
  ttl          = var.ttl
  idle_timeout = "10m"
  on_expiry    = "snapshot"
}

output "sandbox" {
  description = "Id of the sandbox."
  value       = sandboxer_sandbox.ci.id
}
