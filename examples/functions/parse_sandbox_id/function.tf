output "created_at" {
  value = provider::sandboxer::parse_sandbox_id("local/sbx-06h2tshq2li4at0b30r7").created_at
}
