// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

import (
	"fmt"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// capabilities is the document. Nothing of it depends on this machine.
func capabilities() sdk.Capabilities {
	of := func(class sdk.Class) func(reason string) sdk.Guarantee {
		return func(reason string) sdk.Guarantee { return sdk.Guarantee{Class: class, Reason: reason} }
	}
	enforced, bestEffort, emulated, unsupported := of(sdk.ClassEnforced), of(sdk.ClassBestEffort), of(sdk.ClassEmulated), of(sdk.ClassUnsupported)
	lock := "a tag, changed under a lock and read back: exact among all who share a state directory; from elsewhere two at the same moment can both win"
	return sdk.Capabilities{
		sdk.FeatureKernelIsolation:       enforced("gVisor, or a virtual machine with the runtime vm"),
		sdk.FeatureCPULimit:              enforced("the vendor's limit, in physical cores"),
		sdk.FeatureMemoryLimit:           enforced("the vendor's limit"),
		sdk.FeaturePidsLimit:             unsupported("the vendor has no such limit"),
		sdk.FeatureDiskLimit:             unsupported("the vendor has no such limit"),
		sdk.FeatureEgressNone:            enforced("the vendor's block_network; commands and files still go through the vendor"),
		sdk.FeatureEgressDeny:            bestEffort("the vendor's allow-list; how names are looked up is not bounded"),
		sdk.FeatureEgressCIDR:            bestEffort("the vendor's allow-list goes by address: an entry opens every port of it"),
		sdk.FeatureEgressDomain:          bestEffort("the vendor goes by the name in the TLS handshake alone; DNS is open"),
		sdk.FeatureEgressOpen:            enforced("the vendor's default"),
		sdk.FeatureSecretsOutside:        unsupported("secrets are files inside"),
		sdk.FeatureSecretFiles:           bestEffort("files of mode 0400 on the sandbox's disk, written before the command starts; snapshots hold them"),
		sdk.FeatureDeadline:              bestEffort("sandboxer reap ends it at its deadline; the vendor itself does at the lease's maximum, which it is told at the create"),
		sdk.FeatureExtend:                bestEffort("a tag: up to the lease's maximum, which the vendor's lifetime holds and nothing changes later; no more than 24 h in all"),
		sdk.FeatureExtendCAS:             bestEffort(lock),
		sdk.FeatureClaim:                 bestEffort(lock),
		sdk.FeatureExpirySnapshot:        unsupported("what the vendor keeps of an end is experimental, and it keeps it for 30 days"),
		sdk.FeatureExpiryPause:           unsupported("the vendor can't pause"),
		sdk.FeatureIdleTimeout:           enforced("the vendor's idle timeout, in whole seconds"),
		sdk.FeatureIdleExec:              enforced("the vendor counts a command that runs"),
		sdk.FeatureIdleFiles:             enforced("files move by commands"),
		sdk.FeatureIdlePorts:             bestEffort("the vendor counts open connections of a tunnel"),
		sdk.FeatureIdleProcesses:         unsupported("the vendor does not count processes, the command of the profile among them"),
		sdk.FeatureIdempotentCreate:      enforced("the id is the sandbox's name, which one running sandbox of an app has"),
		sdk.FeatureListComplete:          bestEffort("pages overlap, so a lost one is noticed; the vendor names no total"),
		sdk.FeatureFilesystemSnapshot:    bestEffort("the vendor's image, which ends at its retention by itself; which ones there are is known in the state directory of who made them"),
		sdk.FeatureMemorySnapshot:        unsupported("the vendor's ends the sandbox and is experimental"),
		sdk.FeatureSnapshotLeavesRunning: bestEffort("the vendor's filesystem snapshot; a lifetime that ends meanwhile ends both"),
		sdk.FeatureRestore:               bestEffort("a sandbox made from the image, of the same workspace; volumes are not part of it"),
		sdk.FeatureFork:                  bestEffort("as often as wanted while the image is kept"),
		sdk.FeaturePortableSnapshot:      unsupported("the vendor gives no image out"),
		sdk.FeaturePause:                 unsupported("the vendor can't pause"),
		sdk.FeatureExec:                  enforced("as root; a timeout ends every process that has the command's mark in its environment"),
		sdk.FeatureFiles:                 enforced("packed and unpacked by the tar of the image"),
		sdk.FeaturePorts:                 enforced("the vendor's tunnels, on the internet"),
		sdk.FeatureLogs:                  bestEffort("a file in the sandbox, " + mainLog + ": it ends with it"),
		sdk.FeatureNetworkLog:            unsupported("the vendor tells nothing of what it denies"),
		sdk.FeatureCredentialIsolation:   unsupported("nothing here looks at how a sandbox is shut off yet, and the vendor shows nothing of it"),
		sdk.FeatureHostRoot:              emulated("the backend's default_image"),
		sdk.FeatureImageFile:             unsupported("the vendor pulls by reference only"),
		sdk.FeatureImagePull:             enforced("the vendor pulls it and keeps it"),
		sdk.FeatureImageBuild:            unsupported("the vendor's Go client takes no build context"),
		sdk.FeatureCompose:               unsupported("a sandbox is one container"),
		sdk.FeatureMachine:               unsupported("the vendor boots its own machines only"),
		sdk.FeatureTemplate:              enforced("an image of the workspace, by id or published name"),
		sdk.FeatureRuntime:               enforced("gvisor or vm"),
	}
}

// need is a feature that an attribute asks for.
type need struct {
	asked   bool
	path    string
	feature sdk.Feature
}

// refuse returns the first thing that is asked for and unsupported. sandboxer
// does so at plan; what is made here must never be less than what was asked.
func refuse(opts sdk.CreateOptions, restores bool) error {
	p := opts.Profile
	var limits sdk.Limits
	if p.Limits != nil {
		limits = *p.Limits
	}
	needs := []need{
		{isPath(p.Image), "image", sdk.FeatureImageFile},
		{p.Build != nil, "build", sdk.FeatureImageBuild},
		{p.Compose != nil, "compose", sdk.FeatureCompose},
		{p.Machine != nil, "machine", sdk.FeatureMachine},
	}
	if restores {
		needs = nil // what the source was made from does not matter any more
	}
	needs = append(needs,
		need{limits.Pids != 0, "limits.pids", sdk.FeaturePidsLimit},
		need{limits.Disk != "", "limits.disk", sdk.FeatureDiskLimit},
		need{opts.OnExpiry == sdk.OnExpirySnapshot, "on_expiry", sdk.FeatureExpirySnapshot},
		need{opts.OnExpiry == sdk.OnExpiryPause, "on_expiry", sdk.FeatureExpiryPause},
	)
	document := capabilities()
	for _, need := range needs {
		if found := document.Of(need.feature); need.asked && found.Class == sdk.ClassUnsupported {
			return sdk.Unsupported(need.path, "%s is unsupported by Modal: %s", need.feature, found.Reason)
		}
	}
	if !isRoot(p.User) {
		return sdk.Unsupported("user", "Modal runs every command as root, not as %.80q", p.User)
	}
	if p.Runtime != "" && p.Runtime != "gvisor" && p.Runtime != "vm" {
		return sdk.Unsupported("runtime", "Modal has the runtimes gvisor and vm, not %.80q", p.Runtime)
	}
	if opts.IdleTimeout%time.Second != 0 || opts.IdleTimeout < 0 {
		return sdk.Invalid("idle_timeout", "Modal takes whole seconds, not %s", opts.IdleTimeout)
	}
	if p.Network == nil {
		return nil
	}
	for i, entry := range p.Network.Allow {
		if _, err := sdk.ParseAllow(entry); err != nil {
			return sdk.Invalid(fmt.Sprintf("network.allow[%d]", i), "%s", err)
		}
	}
	return nil
}

func isPath(image string) bool {
	return strings.HasPrefix(image, "/") || strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}

// isRoot reports whether a user is the one that the vendor runs everything as.
func isRoot(user string) bool {
	switch user {
	case "", "root", "0", "0:0", "root:root":
		return true
	}
	return false
}
