resource "sandboxer_profile" "db" {
  name    = "db"
  setup   = [["sh", "-c", "mkdir -p /data && seq 1000 > /data/rows"]]
  network = { egress = "none" }
}

resource "sandboxer_sandbox" "seeded" {
  profile = sandboxer_profile.db.document
  ttl     = "30m"
}

# The files of the seeded sandbox, kept for a week.
resource "sandboxer_snapshot" "seeded" {
  sandbox_id = sandboxer_sandbox.seeded.id
  kind       = "filesystem"
  ttl        = "168h"
}

# As many copies as wanted.
resource "sandboxer_sandbox" "copy" {
  count    = 2
  snapshot = sandboxer_snapshot.seeded.id
  ttl      = "15m"
}
