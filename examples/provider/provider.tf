terraform {
  required_providers {
    sandboxer = {
      source = "sand-boxer/sandboxer"
    }
  }
}

# Nothing has to be configured: on Linux the embedded backend is used. What is
# set here is what a team usually sets.
provider "sandboxer" {
  fleet       = "ci-main"
  owner       = "payments"
  default_ttl = "30m"
  max_ttl     = "4h"
}
