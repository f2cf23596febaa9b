# Everything that runs in this fleet and belongs to one team.
data "sandboxer_sandboxes" "ours" {
  owner = "payments"
}

output "alive" {
  value = [for s in data.sandboxer_sandboxes.ours.sandboxes : "${s.id} until ${s.expires_at}"]
}
