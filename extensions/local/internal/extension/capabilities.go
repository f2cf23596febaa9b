// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

import "github.com/sand-boxer/terraform-provider-sandboxer/sdk"

// staticCapabilities is the document without a look at the machine. Classes
// that depend on it are the weakest that they can have; Probe decides them.
func staticCapabilities() sdk.Capabilities {
	enforced := func(reason string) sdk.Guarantee { return sdk.Guarantee{Class: sdk.ClassEnforced, Reason: reason} }
	unsupported := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: reason}
	}
	machine := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: reason, DependsOnMachine: true}
	}
	return sdk.Capabilities{
		sdk.FeatureKernelIsolation:       enforced("gVisor: a kernel of its own in user space, in a user namespace without privilege, under seccomp"),
		sdk.FeatureCPULimit:              machine("control groups, where this user may make them"),
		sdk.FeatureMemoryLimit:           machine("control groups, where this user may make them, else measured each second; exceeding it ends the whole sandbox"),
		sdk.FeaturePidsLimit:             machine("a group of the sandbox's own kernel; see the machine"),
		sdk.FeatureDiskLimit:             enforced("size of the writable layer, and the same for each tmpfs, whose files count as memory"),
		sdk.FeatureEgressNone:            enforced("no interface but loopback in the sandbox's own network stack"),
		sdk.FeatureEgressDeny:            enforced("no interface but loopback, or with an allow-list one whose other end is only read by the supervisor"),
		sdk.FeatureEgressCIDR:            machine("where a veth pair can be made in network namespaces of one's own"),
		sdk.FeatureEgressDomain:          machine("where a veth pair can be made in network namespaces of one's own"),
		sdk.FeatureEgressOpen:            {Class: sdk.ClassBestEffort, Reason: "the host's own network, loopback included: no isolation from services on this machine"},
		sdk.FeatureSecretsOutside:        unsupported("secrets are files inside"),
		sdk.FeatureSecretFiles:           enforced("files of mode 0400 on a tmpfs, written before the first instruction of the command"),
		sdk.FeatureDeadline:              enforced("a supervisor beside each sandbox; its death is the sandbox's"),
		sdk.FeatureExtend:                enforced("in the record, durable before it is answered"),
		sdk.FeatureExtendCAS:             enforced("on the generation, under the record's lock"),
		sdk.FeatureClaim:                 enforced("on the generation, under the record's lock"),
		sdk.FeatureExpirySnapshot:        {Class: sdk.ClassBestEffort, Reason: "by the supervisor, within a time reserved before the end: 5 s and what the writable layer takes at 48 MiB/s; what is not done by the end is given up"},
		sdk.FeatureExpiryPause:           enforced("by the supervisor, which destroys it at its own deadline"),
		sdk.FeatureIdleTimeout:           enforced("by the supervisor; it stands still while the sandbox is paused, and a resume begins it anew"),
		sdk.FeatureIdleExec:              enforced("from the beginning of a command to its end"),
		sdk.FeatureIdleFiles:             enforced("from the beginning of a copy to its end"),
		sdk.FeatureIdlePorts:             enforced("bytes through a published port; a connection that is silent is idle"),
		sdk.FeatureIdleProcesses:         unsupported("what runs inside is not looked at: the profile's own command is no activity"),
		sdk.FeatureIdempotentCreate:      enforced("an id is a directory's name, taken by an atomic rename"),
		sdk.FeatureListComplete:          enforced("one directory holds every record"),
		sdk.FeatureFilesystemSnapshot:    enforced("the writable layer as a tar"),
		sdk.FeatureMemorySnapshot:        {Class: sdk.ClassBestEffort, Reason: "whole, with what exec started; same gVisor version, processor and host only"},
		sdk.FeatureSnapshotLeavesRunning: enforced("the source goes on"),
		sdk.FeatureRestore:               enforced("into new ids"),
		sdk.FeatureFork:                  enforced("as often as wanted"),
		sdk.FeaturePortableSnapshot:      enforced("filesystem snapshots of sandboxes that were made from an image, as an OCI layout; what is not carried is named"),
		sdk.FeaturePause:                 enforced("all tasks of the sandbox stop; the deadline goes on"),
		sdk.FeatureExec:                  enforced("streams, exit code, user, directory, environment; a timeout ends the whole process tree"),
		sdk.FeatureFiles:                 enforced("tar streams, packed and unpacked inside the sandbox"),
		sdk.FeaturePorts:                 {Class: sdk.ClassBestEffort, Reason: "TCP, carried to a port of this machine; with network.egress = open also the port itself is one of this machine"},
		sdk.FeatureLogs:                  enforced("the newest 8 to 16 MiB of the command's output"),
		sdk.FeatureNetworkLog:            enforced("with network.allow: what was refused or failed, repeats counted, 100 lines in 10 s, the newest 1 to 2 MiB"),
		sdk.FeatureCredentialIsolation:   {Class: sdk.ClassUnverifiable, Reason: "earned by `sandboxer profile verify`, for each revision of a profile", DependsOnMachine: true},
		sdk.FeatureHostRoot:              machine("this machine's programs and libraries, by allow-list"),
		sdk.FeatureImageFile:             enforced("an OCI layout, a docker save archive or a root filesystem tar, by path"),
		sdk.FeatureImagePull:             enforced("from any OCI registry, with the credentials of the Docker configuration; every blob is checked by its digest"),
		sdk.FeatureImageBuild:            unsupported("images are taken by path, not built"),
		sdk.FeatureCompose:               unsupported("a sandbox is one root filesystem"),
		sdk.FeatureMachine:               unsupported("a sandbox is no virtual machine"),
		sdk.FeatureTemplate:              unsupported("there are no templates"),
		sdk.FeatureRuntime:               unsupported("the runtime is always gVisor; leave it out"),
	}
}
