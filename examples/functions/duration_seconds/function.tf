output "seconds" {
  value = provider::sandboxer::duration_seconds("1h30m") # 5400
}
