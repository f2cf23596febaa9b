# A profile that ships in the binary; one of a profile library is found by its
# name in the same way.
data "sandboxer_profile" "shell" {
  name = "shell"
}

resource "sandboxer_sandbox" "shell" {
  profile = data.sandboxer_profile.shell.document
  ttl     = "10m"
}
