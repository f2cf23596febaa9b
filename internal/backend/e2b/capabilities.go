// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

import (
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// capabilities is the document. Nothing of it depends on this machine.
func capabilities() sdk.Capabilities {
	of := func(class sdk.Class) func(reason string) sdk.Guarantee {
		return func(reason string) sdk.Guarantee { return sdk.Guarantee{Class: class, Reason: reason} }
	}
	enforced, bestEffort, emulated, unsupported := of(sdk.ClassEnforced), of(sdk.ClassBestEffort), of(sdk.ClassEmulated), of(sdk.ClassUnsupported)
	template := unsupported("the template fixes it; a sandbox can't ask for another")
	idle := unsupported("the vendor has no idle clock")
	records := "exact among all who share a state directory; from elsewhere only the vendor's own deadline is seen"
	return sdk.Capabilities{
		sdk.FeatureKernelIsolation:       enforced("a microVM of its own for each sandbox"),
		sdk.FeatureCPULimit:              template,
		sdk.FeatureMemoryLimit:           template,
		sdk.FeaturePidsLimit:             unsupported("the vendor has no such limit"),
		sdk.FeatureDiskLimit:             template,
		sdk.FeatureEgressNone:            bestEffort("the vendor's firewall denies what goes out; the vendor's own connection into the sandbox stays"),
		sdk.FeatureEgressDeny:            bestEffort("the vendor's firewall; how names are looked up is not bounded"),
		sdk.FeatureEgressCIDR:            bestEffort("the vendor's firewall goes by address: an entry opens every port of it"),
		sdk.FeatureEgressDomain:          bestEffort("the vendor goes by the name in HTTP and TLS, for every port; DNS is open"),
		sdk.FeatureEgressOpen:            enforced("the vendor's default"),
		sdk.FeatureSecretsOutside:        unsupported("secrets are files inside"),
		sdk.FeatureSecretFiles:           bestEffort("files of mode 0400 below /run, sent right after the boot and before the command; snapshots hold them"),
		sdk.FeatureDeadline:              enforced("the vendor ends a sandbox at its deadline; one that is paused has none there, and ends by sandboxer reap"),
		sdk.FeatureExtend:                enforced("the vendor's own deadline, read back; no longer than its plan allows for one run"),
		sdk.FeatureExtendCAS:             bestEffort(records),
		sdk.FeatureClaim:                 bestEffort(records),
		sdk.FeatureExpirySnapshot:        unsupported("the vendor kills or pauses at the deadline"),
		sdk.FeatureExpiryPause:           enforced("the vendor's autoPause"),
		sdk.FeatureIdleTimeout:           idle,
		sdk.FeatureIdleExec:              idle,
		sdk.FeatureIdleFiles:             idle,
		sdk.FeatureIdlePorts:             idle,
		sdk.FeatureIdleProcesses:         idle,
		sdk.FeatureIdempotentCreate:      emulated("searched for before and after; exact among all who share a state directory"),
		sdk.FeatureListComplete:          bestEffort("the vendor leaves out a sandbox while a snapshot of it is made; those that this state directory knows are asked for one by one"),
		sdk.FeatureFilesystemSnapshot:    enforced("the vendor's snapshot, which holds memory as well; it costs until it is deleted, which sandboxer reap does"),
		sdk.FeatureMemorySnapshot:        bestEffort("the vendor's snapshot; open connections drop"),
		sdk.FeatureSnapshotLeavesRunning: bestEffort("after a short stop; a failure in the middle can end the source"),
		sdk.FeatureRestore:               enforced("a sandbox made from the snapshot, of the same account"),
		sdk.FeatureFork:                  enforced("as often as wanted"),
		sdk.FeaturePortableSnapshot:      unsupported("the vendor gives no snapshot out"),
		sdk.FeaturePause:                 bestEffort("the vendor's pause; it then has no deadline of the vendor's, and is stored until it is deleted"),
		sdk.FeatureExec:                  enforced("a timeout ends every process that has the command's mark in its environment"),
		sdk.FeatureFiles:                 enforced("packed and unpacked by the tar of the template"),
		sdk.FeaturePorts:                 unsupported("the vendor publishes ports as HTTPS under names of its own, not as addresses"),
		sdk.FeatureLogs:                  bestEffort("a file in the sandbox, /var/log/sandboxer-main.log: it ends with it"),
		sdk.FeatureNetworkLog:            unsupported("the vendor tells nothing of what it denies"),
		sdk.FeatureCredentialIsolation:   unsupported("nothing here looks at how a sandbox is shut off yet, and the vendor shows nothing of it"),
		sdk.FeatureHostRoot:              enforced("the vendor's template base"),
		sdk.FeatureImageFile:             unsupported("the vendor builds templates from references only"),
		sdk.FeatureImagePull:             bestEffort("e2b:TEMPLATE is a template; any other reference is one that the vendor can pull without credentials, and builds a template from, once"),
		sdk.FeatureImageBuild:            bestEffort("FROM, RUN, ENV, ARG, WORKDIR and USER of a Dockerfile, by the vendor's builder; what needs files of the context is refused"),
		sdk.FeatureCompose:               unsupported("a sandbox is one machine"),
		sdk.FeatureMachine:               unsupported("the vendor boots its own templates only"),
		sdk.FeatureTemplate:              enforced("by id or name, with a tag where wanted"),
		sdk.FeatureRuntime:               unsupported("there is one runtime"),
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
		{p.Compose != nil, "compose", sdk.FeatureCompose},
		{p.Machine != nil, "machine", sdk.FeatureMachine},
	}
	if restores {
		needs = nil // what the source was made from does not matter any more
	}
	needs = append(needs,
		need{p.Runtime != "", "runtime", sdk.FeatureRuntime},
		need{limits.CPUs != 0, "limits.cpus", sdk.FeatureCPULimit},
		need{limits.Memory != "", "limits.memory", sdk.FeatureMemoryLimit},
		need{limits.Pids != 0, "limits.pids", sdk.FeaturePidsLimit},
		need{limits.Disk != "", "limits.disk", sdk.FeatureDiskLimit},
		need{len(p.Ports) > 0, "ports", sdk.FeaturePorts},
		need{opts.IdleTimeout != 0 || p.IdleTimeout != "", "idle_timeout", sdk.FeatureIdleTimeout},
		need{opts.OnExpiry == sdk.OnExpirySnapshot, "on_expiry", sdk.FeatureExpirySnapshot},
	)
	document := capabilities()
	for _, need := range needs {
		if found := document.Of(need.feature); need.asked && found.Class == sdk.ClassUnsupported {
			return sdk.Unsupported(need.path, "%s is unsupported by E2B: %s", need.feature, found.Reason)
		}
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
