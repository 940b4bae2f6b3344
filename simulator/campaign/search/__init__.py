"""A campaign that searches: what runs covered decides which plans are changed, and run again."""
