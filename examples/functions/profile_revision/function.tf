resource "sandboxer_profile" "web" {
  name    = "web"
  command = ["python3", "-m", "http.server", "8080"]
}

check "pinned" {
  assert {
    condition     = provider::sandboxer::profile_revision(sandboxer_profile.web.document) == sandboxer_profile.web.revision
    error_message = "The profile's document is not what its revision says."
  }
}
