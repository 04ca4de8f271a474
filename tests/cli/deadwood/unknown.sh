deadwood syntj --shape mini
