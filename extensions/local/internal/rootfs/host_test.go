// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package rootfs

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// composeEnv sends a start of this test binary to the composer, in namespaces
// like those of a supervisor.
const composeEnv = "SANDBOXER_TEST_COMPOSE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(composeEnv); dir != "" {
		if err := composeAndShow(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// composeAndShow prints every file of the composed root with its content.
func composeAndShow(dir string) error {
	target := filepath.Join(dir, "target")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	if err := ComposeHost(filepath.Join(dir, "host"), target); err != nil {
		return err
	}
	return filepath.WalkDir(target, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, "init") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			content = []byte("closed")
		}
		fmt.Printf("%s %q\n", strings.TrimPrefix(path, target+"/"), content)
		return nil
	})
}

func TestTheHostsRootHoldsNoSecrets(t *testing.T) {
	dir, err := os.MkdirTemp("", "sandboxer-rootfs-") //nolint:usetesting // the other user can't enter the testing package's directories
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", self, filepath.Join(dir, "test")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	root := os.Geteuid() == 0
	uid, gid := os.Geteuid(), os.Getegid()
	if root {
		uid, gid = 54321, 54321
	}
	// Files that the sandboxes' user owns, and nobody else may read.
	own := []string{"opt/mine/key", "usr/local/lib/key"}
	secrets := []string{"etc/gitconfig", "etc/wgetrc", "etc/curlrc", "etc/npmrc", "etc/netrc", "etc/environment", "etc/environment.d/a.conf",
		"etc/profile.d/a.sh", "etc/profile", "etc/docker/daemon.json", "etc/containers/auth.json", "etc/kubernetes/admin.conf", "etc/pip.conf",
		"etc/shadow", "etc/ssl/private/key", "etc/ssh/key", "usr/etc/npmrc", "usr/local/etc/npmrc", "home/me/key", "root/key", "var/lib/key"}
	needed := []string{"usr/bin/program", "etc/ssl/certs/a.pem", "etc/ld.so.cache", "etc/java-21-openjdk/security/policy", "etc/python3.12/sitecustomize.py", "etc/alternatives/x"}
	theirs := []string{"opt/tool/program"}
	for _, name := range append(append(append(append([]string{}, own...), secrets...), needed...), theirs...) {
		write(t, filepath.Join(dir, "host", name), "content of "+name)
	}
	write(t, filepath.Join(dir, "host/etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nme:$6$hash:1000:1000:Me Myself,Room 1,555:/home/me:/bin/sh\n")
	write(t, filepath.Join(dir, "host/etc/group"), "staff:$6$hash:50:me\n")
	if err := os.Mkdir(filepath.Join(dir, "target"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range own {
		if err := os.Chmod(filepath.Join(dir, "host", name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if root {
		for _, name := range append(own, "opt/mine", "usr/local", "usr/local/lib", "../target") {
			if err := os.Chown(filepath.Join(dir, "host", name), uid, gid); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(filepath.Join(dir, "test"))
	cmd.Dir, cmd.Env = "/", []string{composeEnv + "=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: uid, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: gid, Size: 1}},
		GidMappingsEnableSetgroups: root, Credential: &syscall.Credential{NoSetGroups: !root},
	}
	data, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	out := string(data)
	for _, name := range append(own, secrets...) {
		if strings.Contains(out, "content of "+name) || strings.Contains(out, name+" \"closed\"") {
			t.Errorf("%s is in the sandbox", name)
		}
	}
	if root { // who else can make files that are not their own
		needed = append(needed, theirs...)
	}
	for _, name := range needed {
		if !strings.Contains(out, "content of "+name) {
			t.Errorf("%s is missing", name)
		}
	}
	if strings.Contains(out, "hash") || strings.Contains(out, "Myself") || !strings.Contains(out, `me:x:1000:1000::/home/me:/bin/sh`) || !strings.Contains(out, "staff:x:50:me") {
		t.Errorf("accounts:\n%s", out)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
