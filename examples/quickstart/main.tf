# The quickstart: `make quickstart` applies this step by step. Every sandbox
# runs on the embedded backend, so nothing has to be installed or configured.
terraform {
  required_providers {
    sandboxer = {
      source = "sand-boxer/sandboxer"
    }
  }
}

provider "sandboxer" {
  fleet = "quickstart"
  owner = "you"
}

variable "forks" {
  description = "How many copies of the warm sandbox to make; 0 takes no snapshot."
  type        = number
  default     = 0
}

variable "short" {
  description = "Whether to make a sandbox that lives for a few seconds only."
  type        = bool
  default     = false
}

# What kind of sandbox: the host's own tools, no network, a counter in memory.
resource "sandboxer_profile" "counter" {
  name        = "quickstart"
  description = "A shell that counts seconds in memory."
  command     = ["/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 1; done"]
  ready       = { exec = ["/bin/sh", "-c", "test -s /tmp/count"], timeout = "30s" }
  network     = { egress = "none" }
  ttl         = { default = "15m", max = "2h" }
}

# One sandbox of that kind. It ends by itself after its ttl, whatever happens.
resource "sandboxer_sandbox" "warm" {
  profile = sandboxer_profile.counter.document
  ttl     = "15m"
}

# Its memory, processes and files, while it keeps running.
resource "sandboxer_snapshot" "warm" {
  count      = var.forks > 0 ? 1 : 0
  sandbox_id = sandboxer_sandbox.warm.id
  kind       = "memory"
  ttl        = "1h"
}

# Copies that go on counting from where the snapshot was taken.
resource "sandboxer_sandbox" "fork" {
  count    = var.forks
  snapshot = sandboxer_snapshot.warm[0].id
  ttl      = "10m"
}

# One that is gone before anybody destroys it, and something that depends on it.
resource "sandboxer_sandbox" "short" {
  count   = var.short ? 1 : 0
  profile = sandboxer_profile.counter.document
  ttl     = "4s"
}

resource "terraform_data" "follower" {
  count            = var.short ? 1 : 0
  triggers_replace = sandboxer_sandbox.short[0].id
}

output "warm" {
  value = sandboxer_sandbox.warm.id
}

output "forks" {
  value = sandboxer_sandbox.fork[*].id
}

output "short" {
  value = one(sandboxer_sandbox.short[*].id)
}
