mock_provider "sandboxer" {
  mock_resource "sandboxer_profile" {
    defaults = {
      document = "{\"name\":\"e2e\"}"
    }
  }
  mock_resource "sandboxer_sandbox" {
    defaults = {
      id     = "sbx-0dfbp5n9h3l6v8e2k1qa"
      status = "ready"
    }
  }
}

run "it_is_bounded" {
  command = apply

  assert {
    condition     = sandboxer_sandbox.ci.ttl == "30m" && sandboxer_sandbox.ci.idle_timeout == "10m"
    error_message = "The sandbox has no bounds."
  }
  assert {
    condition     = output.sandbox == "sbx-0dfbp5n9h3l6v8e2k1qa"
    error_message = "The output is not the sandbox's id."
  }
}

run "its_life_is_an_argument" {
  command   = plan
  variables { ttl = "1h" }

  assert {
    condition     = sandboxer_sandbox.ci.ttl == "1h"
    error_message = "The ttl does not arrive."
  }
}
