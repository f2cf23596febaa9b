variable "id" {
  description = "Id of a sandbox that somebody else made, on the command line for instance."
  type        = string
}

data "sandboxer_sandbox" "one" {
  id = var.id
}

output "ends_at" {
  value = data.sandboxer_sandbox.one.expires_at
}
