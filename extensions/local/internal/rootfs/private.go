// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package rootfs makes the file systems of a sandbox: the private root that
// its supervisor lives in, and the root that the sandbox itself sees (the
// host's own by allow-list, or an image).
package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The private root's places. They are short because control sockets live
// below them and a socket's path is limited to 108 bytes.
const (
	PrivateSandbox = "/s"    // the sandbox's directory
	PrivateProgram = "/p"    // this binary and its sidecar names
	PrivateImage   = "/i"    // the image file, if there is one
	PrivateRunsc   = "/r"    // runsc's state
	PrivateBundle  = "/b"    // the OCI bundle
	PrivateCalls   = "/x"    // files of single calls
	PrivateOwn     = "/e"    // what the sandbox sees as OwnDir
	PrivateLog     = "/l"    // runsc's logs, on a file system of bounded size
	PrivateRoot    = "/root" // the composed root
)

// OwnDir is where a sandbox finds what is its own and not its source's when it
// is a copy, from the copy's first instruction on: the directory is the
// supervisor's, and a snapshot does not hold it.
const OwnDir = "/run/sandboxer"

// Generation is the file in OwnDir with a random identifier, another one for
// each sandbox, restored ones included.
const Generation = "generation"

// Private describes a private root.
type Private struct {
	Scratch  string // existing directory to mount on
	Sandbox  string
	Program  string
	Image    string // empty: compose the host's root
	Resolver bool   // the process looks names up as the host does
}

// Enter makes the private root in this process's own mount namespace and
// makes it the root. Nothing else of the host stays reachable: what an
// allow-list does not name does not exist.
func (p Private) Enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", p.Scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m,mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", p.Scratch, err)
	}
	at := func(path string) string { return filepath.Join(p.Scratch, path) }
	for _, dir := range []string{PrivateSandbox, PrivateProgram, PrivateRunsc, PrivateBundle, PrivateCalls, PrivateOwn, PrivateLog,
		PrivateRoot, "/proc", "/dev", "/sys", "/tmp", "/old"} {
		if err := os.Mkdir(at(dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", at(PrivateLog), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4m,mode=0700"); err != nil {
		return fmt.Errorf("mount tmpfs for logs: %w", err)
	}
	if err := bind(p.Sandbox, at(PrivateSandbox), false); err != nil {
		return err
	}
	if err := bind(p.Program, at(PrivateProgram), true); err != nil {
		return err
	}
	if p.Image != "" {
		if err := bind(p.Image, at(PrivateImage), true); err != nil {
			return err
		}
	} else if err := ComposeHost("/", at(PrivateRoot)); err != nil {
		return fmt.Errorf("compose the host's root: %w", err)
	}
	if p.Resolver {
		if err := bindResolver(p.Scratch); err != nil {
			return fmt.Errorf("bind the host's resolver configuration: %w", err)
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		if err := bind("/dev/"+name, at("/dev/"+name), false); err != nil {
			return err
		}
	}
	if err := bind("/sys", at("/sys"), true); err != nil {
		return err
	}
	// Needs a process in the new pid namespace, which this one is.
	if err := unix.Mount("proc", at("/proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.PivotRoot(p.Scratch, at("/old")); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's root: %w", err)
	}
	return os.Remove("/old")
}

// bindResolver makes the host's resolver configuration readable where the
// resolver looks for it. Directories are bound and not the files: a host that
// moves to another network puts a new file in the place of the old one.
func bindResolver(root string) error {
	dirs := []string{"/etc"}
	if file, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil {
		if dir := filepath.Dir(file); dir != "/" && dir != "/etc" && !strings.HasPrefix(dir, "/etc/") {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		if err := bind(dir, filepath.Join(root, dir), true); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a file or directory, with what is mounted below it, on target,
// which is made.
func bind(source, target string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else {
		if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
			var f *os.File
			if f, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
				f.Close()
			}
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	if !readOnly {
		return nil
	}
	// mount_setattr only adds the flag, so flags locked by the owner of the
	// mount stay as they are.
	err = unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) {
		// Before Linux 5.12. Nothing is ever written below: an overlay lies on
		// top, and the writer would be an unprivileged user.
		return nil
	}
	if err != nil {
		return fmt.Errorf("make %s read-only: %w", source, err)
	}
	return nil
}
