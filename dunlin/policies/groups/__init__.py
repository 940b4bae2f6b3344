"""What groups of instances are formed, what each member computes, and in what turns."""
