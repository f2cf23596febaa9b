module github.com/sand-boxer/terraform-provider-sandboxer

go 1.26.0
