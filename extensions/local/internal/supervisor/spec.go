// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The OCI spec, as much of it as we use.

import (
	"strconv"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type ociSpec struct {
	Version     string            `json:"ociVersion"`
	Process     ociProcess        `json:"process"`
	Root        ociRoot           `json:"root"`
	Hostname    string            `json:"hostname"`
	Mounts      []ociMount        `json:"mounts"`
	Linux       ociLinux          `json:"linux"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ociProcess struct {
	User         ociUser          `json:"user"`
	Args         []string         `json:"args"`
	Env          []string         `json:"env"`
	Cwd          string           `json:"cwd"`
	Capabilities *ociCapabilities `json:"capabilities,omitempty"`
	OOMScoreAdj  *int             `json:"oomScoreAdj,omitempty"`
}

type ociUser struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"additionalGids,omitempty"`
}

type ociCapabilities struct {
	Bounding    []string `json:"bounding"`
	Effective   []string `json:"effective"`
	Permitted   []string `json:"permitted"`
	Inheritable []string `json:"inheritable,omitempty"`
}

type ociRoot struct {
	Path string `json:"path"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

type ociLinux struct {
	Namespaces []ociNamespace `json:"namespaces"`
}

type ociNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

// containerCapabilities are what a container engine gives by default. They
// are capabilities in the sandbox's own kernel, not the host's.
var containerCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// rootCapabilities are those of the init and of what root starts. Another
// user's commands lose all but the bounding set when they become that user's:
// a set-user-id program can still gain them.
func rootCapabilities() *ociCapabilities {
	return &ociCapabilities{Bounding: containerCapabilities, Effective: containerCapabilities, Permitted: containerCapabilities}
}

// allCapabilities are the helper's: it kills and places as the sandbox's root
// whatever the profile's user is.
func allCapabilities() *ociCapabilities {
	set := append([]string{"CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"}, containerCapabilities...)
	return &ociCapabilities{Bounding: set, Effective: set, Permitted: set}
}

// tmpfs returns the options of a tmpfs. One that is not bounded would be a way
// round the bound of the writable layer.
func (s *supervisor) tmpfs(options ...string) []string {
	if s.config.Disk > 0 {
		options = append(options, "size="+strconv.FormatInt(s.config.Disk, 10))
	}
	return options
}

// spec describes the sandbox. Its process is the init, as root whoever the
// main process's user is, because it starts commands of any user. /tmp gets no mount of its own, and runsc is
// told so, because a file system of its own would be missing in a snapshot.
func (s *supervisor) spec() ociSpec {
	score := 500 // under memory pressure the sandbox goes before its supervisor
	spec := ociSpec{
		Version: "1.1.0",
		Process: ociProcess{
			Args: []string{initproc.Path}, Cwd: "/", Capabilities: rootCapabilities(), OOMScoreAdj: &score,
		},
		Root:     ociRoot{Path: rootfs.PrivateRoot},
		Hostname: "sandbox",
		Mounts: []ociMount{
			{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev"}},
			{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
			{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec"}},
			{"/dev/shm", "tmpfs", "shm", s.tmpfs("nosuid", "nodev", "mode=1777")},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{"/run/secrets", "tmpfs", "tmpfs", s.tmpfs("nosuid", "nodev", "noexec", "mode=755")},
			// Without any directory of the host the runtime starts no file server,
			// and then forgets the file that the writable layer of an image is
			// kept in. So this one serves for that as well.
			{rootfs.OwnDir, "bind", rootfs.PrivateOwn, []string{"bind", "ro"}},
			{"/proc/sys/kernel/random/boot_id", "bind", rootfs.PrivateOwn + "/" + rootfs.Generation, []string{"bind", "ro"}},
		},
		Linux: ociLinux{Namespaces: []ociNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}}},
	}
	if s.config.Process.Group != "" {
		spec.Mounts = append(spec.Mounts, ociMount{"/sys/fs/cgroup", "cgroup", "cgroup", []string{"nosuid", "noexec", "nodev", "ro"}})
	}
	if s.config.OwnNet || s.config.Egress != nil {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, ociNamespace{Type: "network", Path: "/proc/self/ns/net"})
	}
	spec.Annotations = map[string]string{}
	if s.config.Image != "" {
		spec.Annotations["dev.gvisor.spec.rootfs.source"] = rootfs.PrivateImage
		spec.Annotations["dev.gvisor.spec.rootfs.type"] = "erofs"
		spec.Annotations["dev.gvisor.spec.rootfs.overlay"] = s.runsc.Overlay[len("root:"):]
	}
	if s.config.Start.Upper != "" {
		spec.Annotations["dev.gvisor.tar.rootfs.upper"] = snapshotFD + "/" + s.config.Start.Upper
	}
	return spec
}
