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

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
)

// TmpKeep keeps /tmp from being empty: the runtime mounts a tmpfs on an empty
// one, and what lies on a file system of its own is missing in a snapshot.
const TmpKeep = "tmp/.sandboxer"

// hostTrees hold programs and libraries.
var hostTrees = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "opt", "nix/store", "gnu/store"}

// hostEtc are the entries of /etc that programs need and that hold no secret.
var hostEtc = []string{
	"alternatives", "bash.bashrc", "bash_completion.d", "bashrc", "ca-certificates", "ca-certificates.conf",
	"debian_version", "default/locale", "environment.d", "ethertypes", "fonts", "group", "host.conf", "inputrc",
	"java", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "locale.gen", "localtime", "login.defs",
	"lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "mke2fs.conf", "networks", "nsswitch.conf",
	"os-release", "passwd", "perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "postgresql-common",
	"profile", "profile.d", "protocols", "python3", "redhat-release", "rpc", "services", "shells", "skel",
	"ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "system-release", "terminfo", "timezone", "vim", "xattr.conf",
	"alpine-release", "apk/arch", "arch-release", "crypto-policies", "gai.conf", "gitconfig", "nanorc", "wgetrc",
}

// skeleton are the directories that exist and are empty.
var skeleton = []struct {
	path string
	mode os.FileMode
}{
	{"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"root", 0o700}, {"home", 0o755}, {"srv", 0o755}, {"mnt", 0o755},
	{"media", 0o755}, {"run", 0o755}, {"run/lock", 0o777 | os.ModeSticky}, {"run/secrets", 0o755}, {"tmp", 0o777 | os.ModeSticky},
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
	for _, name := range hostEtc {
		if err := mirror(filepath.Join(host, "etc", name), filepath.Join(target, "etc", name)); err != nil {
			return err
		}
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
	path := filepath.Join(target, initproc.Path)
	if err := os.WriteFile(path, initproc.Binary(), 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
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
