# A kind of sandbox: what it runs, when it is ready, what it may do, how long
# it lives. Without an image the embedded backend gives it the host's own
# programs, read-only, with secrets left out.
resource "sandboxer_profile" "web" {
  name        = "web"
  description = "A static web server on port 8080."

  command = ["python3", "-m", "http.server", "8080", "--directory", "/srv"]
  files = {
    "/srv/index.html" = { content = "hello from a sandbox\n" }
  }
  ports   = { http = 8080 }
  ready   = { http = { port = 8080, path = "/" }, timeout = "30s" }
  network = { egress = "none" }
  ttl     = { default = "30m", max = "4h" }
}
