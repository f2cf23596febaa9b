# What a backend promises, before anything is made on it.
data "sandboxer_backend" "local" {
  name = "local"
}

output "egress" {
  value = data.sandboxer_backend.local.capabilities["egress_none"].class
}
