// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"path"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// SecretsDir is where the secrets of a sandbox lie, on every backend.
const SecretsDir = "/run/secrets"

// engineSockets are the ends of paths at which container engines listen.
var engineSockets = []string{
	"/docker.sock", "/docker/api.sock", "/containerd.sock", "/podman.sock", "/crio.sock", "/cri-dockerd.sock", "/dockershim.sock", "/buildkitd.sock", "/lxd/unix.socket", "/incus/unix.socket",
	"/libvirt/libvirt-sock",
}

// Place returns the check that is about a path of the host that is mounted, or
// about where something of it is mounted.
func Place(name string) sdk.IsolationCheck {
	name = path.Clean("/" + name)
	base := path.Base(name)
	for _, end := range engineSockets {
		if strings.HasSuffix(name, end) {
			return sdk.CheckEngine
		}
	}
	switch {
	case strings.HasPrefix(base, "S.gpg-agent"), strings.Contains(base, "ssh-agent"), base == "ssh-auth.sock", base == "agent.sock",
		strings.HasPrefix(base, "agent.") && strings.Contains(name, "/ssh-"), strings.HasSuffix(name, "/keyring/ssh"):
		return sdk.CheckAgents
	case strings.Contains(name, "/secrets/kubernetes.io/"), strings.Contains(name, "/secrets/eks.amazonaws.com"), strings.Contains(name, "/secrets/azure/"),
		strings.HasSuffix(name, "/serviceaccount"), within(name, SecretsDir), within(name, "/var"+SecretsDir):
		return sdk.CheckTokens
	}
	return sdk.CheckMounts
}

func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// HarmlessCapabilities are those that a container engine gives by default:
// none of them reaches beyond a container that has no devices of its host.
// Source: the default list of Docker Engine.
var HarmlessCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}
