// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package rootfs

// The host's own root, by allow-list. What is not named here is not there:
// no home directories, no /run, no /var, no sockets, no password hashes, no
// keys. A deny list was tried first and exposed /etc/shadow.

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
)

// TmpKeep keeps /tmp from being empty: the runtime mounts a tmpfs on an empty
// one, and what lies on a file system of its own is missing in a snapshot.
const TmpKeep = "tmp/.sandboxer"

// hostTrees hold programs and libraries.
var hostTrees = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix/store", "gnu/store"}

// hostEtc are the entries of /etc that programs need and that hold no secret,
// as patterns. What people configure is not among them: shells, fetchers and
// package managers keep tokens in such files.
var hostEtc = []string{
	"alpine-release", "alternatives", "apk/arch", "arch-release", "ca-certificates*", "crypto-policies", "debian_version",
	"ethertypes", "fonts", "gai.conf", "host.conf", "inputrc", "java", "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"locale.alias", "locale.conf", "locale.gen", "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "mailcap",
	"mime.types", "mke2fs.conf", "networks", "nsswitch.conf", "os-release", "perl", "pki/ca-trust", "pki/tls/cert.pem",
	"pki/tls/certs", "postgresql-common", "protocols", "python3*", "redhat-release", "rpc", "services", "shells",
	"ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "system-release", "terminfo", "timezone", "xattr.conf",
}

// covered are the places in hostTrees where people configure.
var covered = []string{"usr/local/etc", "usr/etc/npmrc", "usr/etc/gitconfig", "usr/etc/wgetrc", "usr/etc/profile.d"}

// skeleton are the directories that exist and are empty.
var skeleton = []struct {
	path string
	mode os.FileMode
}{
	{"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"root", 0o700}, {"home", 0o755}, {"srv", 0o755}, {"mnt", 0o755},
	{"media", 0o755}, {"run", 0o755}, {"run/lock", 0o777 | os.ModeSticky}, {"run/secrets", 0o755}, {"run/sandboxer", 0o755}, {"tmp", 0o777 | os.ModeSticky},
	{"etc", 0o755}, {"var", 0o755}, {"var/cache", 0o755}, {"var/lib", 0o755}, {"var/log", 0o755}, {"var/spool", 0o755},
	{"var/tmp", 0o777 | os.ModeSticky}, {"var/lib/misc", 0o755},
}

// ComposeHost composes the host's root in an empty directory.
func ComposeHost(host, target string) error {
	for _, dir := range skeleton {
		path := filepath.Join(target, dir.path)
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		// Mkdir is subject to the umask.
		if err := os.Chmod(path, dir.mode); err != nil {
			return err
		}
	}
	for _, name := range hostTrees {
		if err := mirror(filepath.Join(host, name), filepath.Join(target, name)); err != nil {
			return err
		}
	}
	if err := composeOpt(filepath.Join(host, "opt"), filepath.Join(target, "opt")); err != nil {
		return err
	}
	if err := composeEtc(filepath.Join(host, "etc"), filepath.Join(target, "etc")); err != nil {
		return err
	}
	for link, to := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/mounts"} {
		if err := os.Symlink(to, filepath.Join(target, link)); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"etc/hosts":       "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/hostname":    "sandbox\n",
		"etc/resolv.conf": "",
		TmpKeep:           "",
	} {
		if err := os.WriteFile(filepath.Join(target, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := coverHost(host, target); err != nil {
		return err
	}
	path := filepath.Join(target, initproc.Path)
	if err := os.WriteFile(path, initproc.Init(), 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// composeOpt binds what is installed in /opt. What belongs to the user that
// sandboxes run as is left out: files that are closed to everybody else would
// be open to the sandbox.
func composeOpt(opt, target string) error {
	if ours(opt) {
		return nil
	}
	entries, err := os.ReadDir(opt)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(opt, entry.Name())
		if ours(path) {
			continue
		}
		if err := mirror(path, filepath.Join(target, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func composeEtc(etc, target string) error {
	for _, pattern := range hostEtc {
		paths, err := filepath.Glob(filepath.Join(etc, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			name, err := filepath.Rel(etc, path)
			if err != nil {
				return err
			}
			if err := mirror(path, filepath.Join(target, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"passwd", "group"} {
		data, err := os.ReadFile(filepath.Join(etc, name))
		if err != nil {
			continue // as with anything else that is not there
		}
		if err := os.WriteFile(filepath.Join(target, name), accounts(data), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// accounts returns a passwd or group file with names, numbers and paths alone:
// no password, and nothing about people.
func accounts(data []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(fields) < 4 {
			continue
		}
		fields[1] = "x"
		if len(fields) == 7 {
			fields[4] = ""
		}
		out.WriteString(strings.Join(fields, ":") + "\n")
	}
	return []byte(out.String())
}

// coverHost hides places in what was bound as a whole.
func coverHost(host, target string) error {
	names := covered
	if ours(filepath.Join(host, "usr/local")) {
		names = append([]string{"usr/local"}, covered...)
	}
	for _, name := range names {
		// As it is in the target, where a covered parent hides it already.
		path := filepath.Join(target, name)
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		empty := TmpKeep
		switch {
		case info.IsDir():
			empty = "mnt"
		case !info.Mode().IsRegular():
			continue
		}
		if err := bind(filepath.Join(target, empty), path, true); err != nil {
			return err
		}
	}
	return nil
}

// ours reports whether a path belongs to the user that sandboxes run as. In
// the user namespace of a supervisor this is the only user.
func ours(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid()
}

// mirror repeats one entry of the host: a link as a link, anything else as a
// read-only bind. What the host does not have, or does not let us read, is
// left out.
func mirror(source, target string) error {
	info, err := os.Lstat(source)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.Symlink(to, target)
	case info.IsDir(), info.Mode().IsRegular():
		return bind(source, target, true)
	}
	return nil
}
