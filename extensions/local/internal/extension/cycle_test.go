// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

// Round after round of write, snapshot and restore: nothing of a tree may get
// lost, appear or change on the way, however often it goes.

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// cycles is how many rounds there are.
func cycles() int {
	if os.Getenv("SANDBOXER_TEST_FULL") != "" {
		return 20
	}
	return 3
}

// grow makes round N's part of the tree: every kind of thing, and changes to
// what earlier rounds and the layers below have.
const grow = `
import os, stat, sys
n = int(sys.argv[1])
top = "/srv/tree"
os.makedirs(top, exist_ok=True)
d = f"{top}/round {n}"
os.mkdir(d)
def write(name, data, mode=0o644, uid=0, gid=0):
    with open(name, "wb") as f: f.write(data)
    os.chown(name, uid, gid); os.chmod(name, mode)
write(f"{d}/plain", os.urandom(100000))
write(f"{d}/empty", b"")
write(f"{d}/owned", b"x", 0o600, 1000 + n, 2000 + n)
write(f"{d}/setuid", b"x", 0o4755)
write(f"{d}/closed", b"x", 0)
for name in ["new\nline", " space ", "-dash", "\u00fc\u4e2d", "back\\slash", "quote'\"", ".hidden", ".wh.looks-like-a-whiteout", "x" * 255]:
    write(f"{d}/{name}", name.encode())
write(os.fsencode(d) + b"/not-\xff\xfe-utf8", b"x")
os.link(f"{d}/plain", f"{d}/hard")
os.symlink("plain", f"{d}/soft"); os.symlink("/nowhere/" + "y" * 200, f"{d}/dangling")
os.mkfifo(f"{d}/fifo", 0o640)
os.mkdir(f"{d}/empty-directory", 0o700); os.chmod(f"{d}/empty-directory", 0o1777)
deep = d
for i in range(20): deep += f"/{i}"; os.mkdir(deep)
write(deep + "/bottom", b"deep")
with open(f"{d}/sparse", "wb") as f:
    f.seek(20 << 20); f.write(b"end"); f.truncate(30 << 20)
os.setxattr(f"{d}/plain", "user.note", b"\x00value\xff"); os.setxattr(f"{d}/empty-directory", "user.dir", b"d")
os.utime(f"{d}/owned", ns=(1, 1234567890123456789)); os.utime(f"{d}/soft", ns=(1, 987654321), follow_symlinks=False)
os.utime(f"{d}/empty-directory", ns=(1, 1111111111000000222))
# What is below the writable layer is deleted, replaced and changed.
below = sorted(x for x in os.listdir("/usr/lib") if not x.endswith(".so") and os.path.isfile("/usr/lib/" + x))
if below: os.remove("/usr/lib/" + below[0])
docs = sorted(os.listdir("/usr/share/doc"))
if docs:
    import shutil
    first = "/usr/share/doc/" + docs[0]
    if os.path.isdir(first) and not os.path.islink(first):
        shutil.rmtree(first); os.mkdir(first); write(first + "/only", b"new")  # an opaque directory
        os.rename(first, f"{top}/moved {n}")
# And so is what an earlier round made.
old = f"{top}/round {n - 1}"
if n > 1:
    os.remove(old + "/empty"); os.rename(old + "/plain", old + "/renamed"); os.remove(old + "/fifo"); os.mkdir(old + "/fifo")
    with open(old + "/sparse", "r+b") as f: f.seek(5 << 20); f.write(b"middle")
    os.removexattr(old + "/renamed", "user.note")
`

// list describes a tree, one line for each thing in it.
const list = `
import hashlib, os, stat
inodes = {}
def walk(name):
    s = os.lstat(name)
    kind = stat.S_IFMT(s.st_mode)
    line = [repr(name), oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
    if kind != stat.S_IFDIR: line += [s.st_nlink, s.st_size, inodes.setdefault(s.st_ino, repr(name))]
    if kind == stat.S_IFLNK: line.append(repr(os.readlink(name)))
    else: line += sorted((x, os.getxattr(name, x)) for x in (os.listxattr(name) if kind in (stat.S_IFREG, stat.S_IFDIR) else []))
    if kind == stat.S_IFREG:
        with open(name, "rb") as f: line.append(hashlib.sha256(f.read()).hexdigest())
        # Holes may grow to whole pages, no more.
        if s.st_size > 1 << 20: line.append(s.st_blocks * 512 < 1 << 20)
    print(*line)
    if kind == stat.S_IFDIR:
        for x in sorted(os.listdir(name)): walk(os.path.join(name, x))
walk(b"/srv/tree")
for top in (b"/usr/lib", b"/usr/share/doc"):
    print(top, sorted(os.listdir(top)))
`

func TestRoundsOfSnapshotAndRestore(t *testing.T) {
	for _, kind := range []sdk.SnapshotKind{sdk.SnapshotFilesystem, sdk.SnapshotMemory} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			e := backend(t)
			profile := sdk.Profile{Name: "rounds"}
			if kind == sdk.SnapshotMemory {
				profile.Command = []string{"sh", "-c", fmt.Sprintf(ticker, "/run/ticks")}
			}
			id := create(t, e, options(profile)).ID
			last := 0
			for round := 1; round <= cycles(); round++ {
				run(t, e, id, "python3", "-c", grow, fmt.Sprint(round))
				want := run(t, e, id, "python3", "-c", list)
				if kind == sdk.SnapshotMemory {
					last = ticks(t, e, id, "/run/ticks", last)
				}
				snapshot := snap(t, e, id, kind)
				id = restore(t, e, snapshot.ID, options(profile)).ID
				if _, err := e.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: snapshot.ID, Fleet: fleet}); err != nil {
					t.Fatal(err)
				}
				if kind == sdk.SnapshotMemory {
					last = ticks(t, e, id, "/run/ticks", last)
				}
				if got := run(t, e, id, "python3", "-c", list); got != want {
					t.Fatalf("round %d: %s", round, firstDifference(got, want))
				}
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "nothing", "nothing"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d is\n%s\nand was\n%s", i, a, b)
		}
	}
	return "no difference"
}
